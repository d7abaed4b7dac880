//! The sources of all crates as a tree of modules, and the names in them.
//!
//! Reading collects what stands in the files: which names a module declares and imports, which
//! paths it mentions, its functions with the types that they take, its inherent `impl` blocks.
//! Names are resolved once everything is read, through imports and re-exports to the file that
//! declares them: a `mod.rs` that hands on the names of its children is not a file that everybody
//! depends on. Code for tests only (`#[cfg(test)]`) does not count.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Imports that lead to imports that lead to imports: more is a circle of names.
const DEPTH_MAX: usize = 16;

/// A path as it is written, one name per element.
pub type Names = Vec<String>;

/// A module, in a file of its own or inline.
#[derive(Debug)]
struct Module {
    package: usize,
    file: usize,
    parent: Option<usize>,
    children: HashMap<String, usize>,
    /// Declared here.
    items: HashSet<String>,
    imports: HashMap<String, Names>,
    globs: Vec<Names>,
}

/// A name that is declared in one module.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    module: usize,
    name: String,
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Module(usize),
    Item(Item),
}

/// A function, with the paths in the types of its parameters.
#[derive(Debug)]
struct Function {
    module: usize,
    name: String,
    takes: Vec<Names>,
}

/// An inherent `impl` block.
#[derive(Debug)]
struct Block {
    module: usize,
    of: Names,
    functions: usize,
}

/// One crate.
#[derive(Debug)]
struct Package {
    name: String,
    root: usize,
}

/// All that was read.
#[derive(Debug, Default)]
pub struct Sources {
    packages: Vec<Package>,
    files: Vec<String>,
    modules: Vec<Module>,
    mentions: Vec<(usize, Names)>,
    functions: Vec<Function>,
    blocks: Vec<Block>,
}

/// One file uses names that another one of its crate declares.
#[derive(Debug)]
pub struct Arrow {
    pub from: usize,
    pub to: usize,
    pub name: String,
}

impl Sources {
    /// Reads the crates below `crates/`.
    pub fn read(root: &Path) -> Self {
        let mut out = Self::default();
        let mut entries: Vec<PathBuf> = std::fs::read_dir(root.join("crates"))
            .expect("crates/")
            .map(|entry| entry.expect("a crate").path())
            .collect();
        entries.sort();
        for entry in entries {
            let files = ["src/lib.rs", "src/main.rs"].map(|file| entry.join(file));
            let name = entry.file_name().expect("a name").to_string_lossy();
            for file in files.iter().filter(|file| file.exists()) {
                out.add_package(&name, root, file, &|path| {
                    std::fs::read_to_string(path).ok()
                });
            }
        }
        out
    }

    /// Reads a crate from its first file on. `open` reads one file.
    pub fn add_package(
        &mut self,
        name: &str,
        root: &Path,
        file: &Path,
        open: &dyn Fn(&Path) -> Option<String>,
    ) {
        let package = self.packages.len();
        self.packages.push(Package {
            name: name.to_owned(),
            root: self.modules.len(),
        });
        let mut reader = Reader {
            package,
            root,
            open,
            module: 0,
            path: file.to_path_buf(),
            directory: file.parent().expect("a directory").to_path_buf(),
            depth: 0,
            out: self,
        };
        reader.read_file(None);
    }

    /// The names of the crates.
    pub fn packages(&self) -> impl Iterator<Item = &str> {
        self.packages.iter().map(|package| package.name.as_str())
    }

    /// A file's path below the root of the project.
    pub fn file(&self, file: usize) -> &str {
        &self.files[file]
    }

    /// `crate::Name`, without the modules between them.
    pub fn full_name(&self, item: &Item) -> String {
        let package = self.modules[item.module].package;
        format!("{}::{}", self.packages[package].name, item.name)
    }

    /// Which files of one crate use what others of it declare.
    pub fn arrows(&self, package: &str) -> Vec<Arrow> {
        let is_meant: Vec<bool> = self.packages().map(|name| name == package).collect();
        let mut out = Vec::new();
        for (module, names) in &self.mentions {
            let here = &self.modules[*module];
            if !is_meant[here.package] {
                continue;
            }
            let Some(Target::Item(item)) = self.resolve(*module, names, 0) else {
                continue;
            };
            let there = &self.modules[item.module];
            if there.package == here.package && there.file != here.file {
                out.push(Arrow {
                    from: here.file,
                    to: there.file,
                    name: item.name,
                });
            }
        }
        out
    }

    /// How many functions the inherent `impl` blocks of each type have.
    pub fn methods(&self) -> HashMap<Item, usize> {
        let mut out = HashMap::new();
        for block in &self.blocks {
            if let Some(Target::Item(item)) = self.resolve(block.module, &block.of, 0) {
                *out.entry(item).or_default() += block.functions;
            }
        }
        out
    }

    /// Each function with its file and the types of the project that stand in its parameters.
    pub fn functions(&self) -> impl Iterator<Item = (&str, &str, HashSet<Item>)> {
        self.functions.iter().map(|function| {
            let takes = function.takes.iter();
            let takes = takes.filter_map(|names| self.resolve(function.module, names, 0));
            let takes = takes.filter_map(|target| match target {
                Target::Item(item) => Some(item),
                Target::Module(_) => None,
            });
            let file = self.modules[function.module].file;
            (self.file(file), function.name.as_str(), takes.collect())
        })
    }

    /// Where a path leads that stands in a module.
    fn resolve(&self, module: usize, names: &[String], depth: usize) -> Option<Target> {
        if depth > DEPTH_MAX {
            return None;
        }
        let (first, mut rest) = names.split_first()?;
        let here = &self.modules[module];
        let mut target = match first.as_str() {
            "crate" => Target::Module(self.packages[here.package].root),
            "self" => Target::Module(module),
            "super" => Target::Module(here.parent?),
            name => self
                .look_up(module, name, depth)
                .or_else(|| self.library(name))?,
        };
        while let Target::Module(inside) = target {
            let Some((name, further)) = rest.split_first() else {
                break;
            };
            rest = further;
            target = match name.as_str() {
                "super" => Target::Module(self.modules[inside].parent?),
                "self" => target,
                // A macro makes it, if this is the project's own code: the module has it.
                name => self.look_up(inside, name, depth).unwrap_or_else(|| {
                    Target::Item(Item {
                        module: inside,
                        name: name.to_owned(),
                    })
                }),
            };
        }
        Some(target)
    }

    /// The crate of this name, as code names it.
    fn library(&self, name: &str) -> Option<Target> {
        let mut packages = self.packages.iter();
        let found = packages.find(|package| package.name.replace('-', "_") == name)?;
        Some(Target::Module(found.root))
    }

    /// A name that a module declares or imports.
    fn look_up(&self, module: usize, name: &str, depth: usize) -> Option<Target> {
        let here = &self.modules[module];
        if let Some(child) = here.children.get(name) {
            return Some(Target::Module(*child));
        }
        if here.items.contains(name) {
            return Some(Target::Item(Item {
                module,
                name: name.to_owned(),
            }));
        }
        if let Some(path) = here.imports.get(name) {
            return self.resolve(module, path, depth + 1);
        }
        here.globs.iter().find_map(|path| {
            let Some(Target::Module(other)) = self.resolve(module, path, depth + 1) else {
                return None;
            };
            if other == module || depth >= DEPTH_MAX {
                return None;
            }
            self.look_up(other, name, depth + 1)
        })
    }
}

/// Reads one file after another into [`Sources`].
struct Reader<'a> {
    package: usize,
    root: &'a Path,
    open: &'a dyn Fn(&Path) -> Option<String>,
    module: usize,
    path: PathBuf,
    /// Where the files of the module's children are.
    directory: PathBuf,
    /// Blocks of code around: names declared inside are nobody else's.
    depth: usize,
    out: &'a mut Sources,
}

impl Reader<'_> {
    fn read_file(&mut self, named: Option<(&str, usize)>) {
        let text = (self.open)(&self.path);
        let text = text.unwrap_or_else(|| panic!("{} is missing", self.path.display()));
        let file = syn::parse_file(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        let own = self.path.strip_prefix(self.root).unwrap_or(&self.path);
        self.out.files.push(own.display().to_string());
        let number = self.out.files.len() - 1;
        self.module = self.add_module(number, named);
        for item in &file.items {
            self.visit_item(item);
        }
    }

    fn add_module(&mut self, file: usize, named: Option<(&str, usize)>) -> usize {
        let module = self.out.modules.len();
        self.out.modules.push(Module {
            package: self.package,
            file,
            parent: named.map(|(_, parent)| parent),
            children: HashMap::new(),
            items: HashSet::new(),
            imports: HashMap::new(),
            globs: Vec::new(),
        });
        if let Some((name, parent)) = named {
            let children = &mut self.out.modules[parent].children;
            children.insert(name.to_owned(), module);
        }
        module
    }

    /// Reads a child module, inline or from its file.
    fn read_module(&mut self, item: &syn::ItemMod) {
        let name = item.ident.to_string();
        let parent = self.module;
        let (path, directory) = (self.path.clone(), self.directory.clone());
        if let Some((_, items)) = &item.content {
            let file = self.out.modules[parent].file;
            self.directory.push(&name);
            self.module = self.add_module(file, Some((&name, parent)));
            for item in items {
                self.visit_item(item);
            }
        } else {
            let inside = directory.join(&name);
            let candidates = [directory.join(format!("{name}.rs")), inside.join("mod.rs")];
            let mut candidates = candidates.into_iter();
            let file = candidates.find(|path| (self.open)(path).is_some());
            self.path = file.unwrap_or_else(|| panic!("no file for {}", inside.display()));
            self.directory = inside;
            self.read_file(Some((&name, parent)));
        }
        self.module = parent;
        self.path = path;
        self.directory = directory;
    }

    fn declare(&mut self, name: &syn::Ident) {
        if self.depth == 0 {
            let items = &mut self.out.modules[self.module].items;
            items.insert(name.to_string());
        }
    }

    fn mention(&mut self, names: Names) {
        self.out.mentions.push((self.module, names));
    }

    /// Takes in an import. One that only hands on names is not a use of them.
    fn import(&mut self, tree: &syn::UseTree, before: &Names, is_used: bool) {
        let with = |name: &syn::Ident| {
            let mut names = before.clone();
            names.push(name.to_string());
            names
        };
        let (known_as, names) = match tree {
            syn::UseTree::Path(path) => {
                return self.import(&path.tree, &with(&path.ident), is_used);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before, is_used);
                }
                return;
            }
            syn::UseTree::Glob(_) => {
                if self.depth == 0 {
                    let globs = &mut self.out.modules[self.module].globs;
                    globs.push(before.clone());
                }
                return self.mention(before.clone());
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                let Some(last) = before.last() else { return };
                (last.clone(), before.clone())
            }
            syn::UseTree::Name(name) => (name.ident.to_string(), with(&name.ident)),
            syn::UseTree::Rename(renamed) => (renamed.rename.to_string(), with(&renamed.ident)),
        };
        if self.depth == 0 {
            let imports = &mut self.out.modules[self.module].imports;
            imports.insert(known_as, names.clone());
        }
        if is_used {
            self.mention(names);
        }
    }

    fn add_function(&mut self, signature: &syn::Signature) {
        let mut paths = Paths::default();
        for input in &signature.inputs {
            if let syn::FnArg::Typed(typed) = input {
                paths.visit_type(&typed.ty);
            }
        }
        self.out.functions.push(Function {
            module: self.module,
            name: signature.ident.to_string(),
            takes: paths.0,
        });
    }

    /// Paths of more than one name among the tokens of a macro, which are not parsed.
    fn scan(&mut self, tokens: TokenStream) {
        let mut names: Names = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_path(&mut names);
                    }
                    names.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.end_path(&mut names);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
        self.end_path(&mut names);
    }

    fn end_path(&mut self, names: &mut Names) {
        let names = std::mem::take(names);
        if names.len() > 1 {
            self.mention(names);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        match item {
            syn::Item::Mod(module) => return self.read_module(module),
            syn::Item::Use(import) => {
                let is_used = matches!(import.vis, syn::Visibility::Inherited);
                return self.import(&import.tree, &Vec::new(), is_used);
            }
            syn::Item::Impl(block) if block.trait_.is_none() => {
                if let syn::Type::Path(path) = &*block.self_ty {
                    let functions = block.items.iter().filter(|item| {
                        matches!(item, syn::ImplItem::Fn(function)
                            if !is_for_tests(&function.attrs))
                    });
                    self.out.blocks.push(Block {
                        module: self.module,
                        of: names(&path.path),
                        functions: functions.count(),
                    });
                }
            }
            syn::Item::Const(item) => self.declare(&item.ident),
            syn::Item::Enum(item) => self.declare(&item.ident),
            syn::Item::Fn(item) => {
                self.declare(&item.sig.ident);
                self.add_function(&item.sig);
            }
            syn::Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    self.declare(name);
                }
            }
            syn::Item::Static(item) => self.declare(&item.ident),
            syn::Item::Struct(item) => self.declare(&item.ident),
            syn::Item::Trait(item) => self.declare(&item.ident),
            syn::Item::TraitAlias(item) => self.declare(&item.ident),
            syn::Item::Type(item) => self.declare(&item.ident),
            syn::Item::Union(item) => self.declare(&item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            self.add_function(&function.sig);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.add_function(&function.sig);
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.mention(names(path));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.visit_path(&mac.path);
        self.scan(mac.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

/// The paths in a type.
#[derive(Default)]
struct Paths(Vec<Names>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(names(path));
        visit::visit_path(self, path);
    }
}

fn names(path: &syn::Path) -> Names {
    let segments = path.segments.iter();
    segments.map(|segment| segment.ident.to_string()).collect()
}

/// Whether code is there for tests only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_bare = |name| attribute.path().is_ident("cfg") && argument(attribute) == name;
        is_bare("test") || attribute.path().is_ident("test")
    })
}

fn argument(attribute: &syn::Attribute) -> String {
    let tokens = attribute.meta.require_list().map(|list| &list.tokens);
    tokens.map(ToString::to_string).unwrap_or_default()
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

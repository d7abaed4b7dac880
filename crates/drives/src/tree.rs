//! A tree as the kernel's, for tests.

use std::path::PathBuf;

use crate::Sysfs;

/// A directory that goes away by itself.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    pub(crate) fn sysfs(&self) -> Sysfs {
        Sysfs::new(self.0.path())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.path(name)).expect("a file");
        text.trim().to_owned()
    }

    /// A link; both names are in the tree.
    pub(crate) fn link(&self, name: &str, to: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::os::unix::fs::symlink(self.path(to), path).expect("linked");
    }

    /// A disk with a device behind it.
    pub(crate) fn disk(&self, name: &str, number: &str, sectors: u64) {
        self.write(&format!("block/{name}/size"), &format!("{sectors}\n"));
        self.write(&format!("block/{name}/dev"), &format!("{number}\n"));
        self.write(&format!("block/{name}/device/type"), "0\n");
    }

    /// A slot of an enclosure, dark.
    pub(crate) fn slot(&self, enclosure: &str, component: &str) {
        let at = format!("class/enclosure/{enclosure}/{component}");
        for light in ["fault", "locate"] {
            self.write(&format!("{at}/{light}"), "0\n");
        }
    }
}

//! Here because cargo looks at dependencies for building only where there is something to build.
fn main() {}

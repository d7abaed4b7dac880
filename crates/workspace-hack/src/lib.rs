//! Nothing but its manifest, which names features of outside libraries: what one crate's tests need
//! of a library is built for all, so building the tests of one crate finds what building all has
//! made. Every crate names it among what its tests need, so that the programs have only what they
//! need themselves.

#![forbid(unsafe_code)]

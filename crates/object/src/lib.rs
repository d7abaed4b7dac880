//! Object sets: dnodes, block trees, dirty data, ZAP.

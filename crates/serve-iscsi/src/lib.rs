//! iSCSI target: protocol core without sockets, and a thin TCP layer.

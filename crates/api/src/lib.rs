//! The messages between the command lines and the daemon.

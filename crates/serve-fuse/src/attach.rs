//! Mounting: a connection to the kernel's FUSE, and a place for it in the tree of files.
//!
//! The FUSE library could do that, but when one of its sessions ends it unmounts whatever is at the
//! path by then: another filesystem, if somebody put one there meanwhile or this one lay on top of
//! it. Here what was mounted is told from others, see [`Identity`].
//!
//! Source: mount(2), fuse(4), Documentation/filesystems/fuse/fuse.rst (mount options);
//! util/fusermount.c of libfuse (`_FUSE_COMMFD`).

use std::ffi::CString;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::mountinfo::{Anchor, Identity};
use crate::mountpoint::Mountpoint;

/// What the kernel is told of a mount.
#[derive(Debug, Clone)]
pub(crate) struct Attachment {
    /// What is mounted, as `mount` and `df` show it.
    pub(crate) source_name: String,
    pub(crate) read_only: bool,
    pub(crate) devices: bool,
    pub(crate) setuid: bool,
    pub(crate) exec: bool,
    /// Whether others than the user of this process get in.
    pub(crate) allow_other: bool,
}

impl Attachment {
    /// The flags of mount(2).
    pub(crate) fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NODEV, !self.devices);
        flags.set(MountFlags::NOSUID, !self.setuid);
        flags.set(MountFlags::NOEXEC, !self.exec);
        flags
    }

    /// Mounts at a directory; answers the connection, and where that is.
    pub(crate) fn mount(&self, place: &Mountpoint) -> io::Result<(OwnedFd, Anchor)> {
        let is_root = rustix::process::geteuid().is_root();
        let connection = match self.mount_directly(place) {
            // Others than root may neither mount nor, on some systems, open the device; the helper
            // may. It goes by the path, with their rights.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_root => {
                self.mount_with_helper(&place.path)?
            }
            other => other?,
        };
        let anchor = Anchor {
            path: place.path.clone(),
            identity: Identity::of_last_at(&place.path, &self.source_name),
        };
        Ok((connection, anchor))
    }

    fn mount_directly(&self, place: &Mountpoint) -> io::Result<OwnedFd> {
        let mut device = fs::File::options();
        let device = OwnedFd::from(device.read(true).write(true).open("/dev/fuse")?);
        let mut data = format!(
            "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
            device.as_raw_fd(),
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw()
        );
        if self.allow_other {
            data.push_str(",allow_other");
        }
        let data = CString::new(data)?;
        let source = self.source_name.as_str();
        // The directory itself, whatever its path leads to by now.
        let directory = place.open()?;
        rustix::mount::mount(
            source,
            directory.own_path(),
            "fuse.millpond",
            self.flags(),
            data.as_c_str(),
        )?;
        Ok(device)
    }

    /// As another user than root. The helper gets one end of a socket as its input, and sends the
    /// connection through it.
    fn mount_with_helper(&self, place: &Path) -> io::Result<OwnedFd> {
        let mut options = format!(
            "fsname={},subtype=millpond,default_permissions",
            self.source_name
        );
        for (on, word) in [
            (self.read_only, ",ro"),
            (!self.devices, ",nodev"),
            (!self.setuid, ",nosuid"),
            (!self.exec, ",noexec"),
            (self.allow_other, ",allow_other"),
        ] {
            if on {
                options.push_str(word);
            }
        }
        let (ours, theirs) = UnixStream::pair()?;
        let helper = Command::new("fusermount3")
            .args(["-o", &options, "--"])
            .arg(place)
            .env("_FUSE_COMMFD", "0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let received = receive_descriptor(&ours);
        drop(ours);
        let output = helper.wait_with_output()?;
        match received {
            Ok(Some(connection)) => Ok(connection),
            Ok(None) => {
                let message = String::from_utf8_lossy(&output.stderr);
                Err(io::Error::other(message.trim().to_owned()))
            }
            Err(error) => Err(error),
        }
    }
}

/// The descriptor that comes through a socket, if one does before its other end is closed.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    let receive = || rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC);
    rustix::io::retry_on_intr(receive)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

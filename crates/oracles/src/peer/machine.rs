//! One virtual machine: a QEMU process, its serial console and its monitor (QMP,
//! <https://www.qemu.org/docs/master/interop/qmp-spec.html>).
//!
//! A machine is killed when it goes out of scope.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long QEMU may take to answer its monitor.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A machine that runs, or is about to.
pub struct Machine {
    child: Child,
    monitor: BufReader<UnixStream>,
    /// The lines of the serial console, without their ends.
    console: Receiver<String>,
    /// The socket of its stub for debuggers.
    pub debugger: PathBuf,
    /// How many disks were plugged in.
    disks: u32,
}

/// Why no line came.
pub enum Silence {
    /// The time is over.
    Late,
    /// The machine is off.
    Off,
}

impl Machine {
    /// Starts QEMU with these arguments; `directory` is for the sockets of its monitor and its stub
    /// for debuggers.
    ///
    /// # Panics
    /// When it does not start or does not come to its monitor.
    pub fn start(arguments: &[String], directory: &Path) -> Self {
        let socket = directory.join("monitor");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("a socket for QEMU's monitor");
        let debugger = directory.join("debugger");
        let mut child = Command::new(super::EMULATOR)
            .args(arguments)
            .arg("-qmp")
            .arg(format!("unix:{}", socket.display()))
            .arg("-gdb")
            .arg(format!("unix:{},server=on,wait=off", debugger.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("QEMU starts");
        let (sender, console) = channel();
        for pipe in [
            child
                .stdout
                .take()
                .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
            child
                .stderr
                .take()
                .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        ] {
            let lines = BufReader::new(pipe.expect("a pipe from QEMU")).split(b'\n');
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line);
                    if sender.send(line.trim_end_matches('\r').to_owned()).is_err() {
                        break;
                    }
                }
            });
        }
        let monitor = accept(&listener, &mut child, &console);
        let mut machine = Self {
            child,
            monitor: BufReader::new(monitor),
            console,
            debugger,
            disks: 0,
        };
        machine.reply(); // Its greeting.
        machine.ask("qmp_capabilities", &json!({}));
        machine
    }

    /// Tells the machine's monitor to do something; what it answers.
    ///
    /// # Panics
    /// When QEMU refuses, or is gone.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Value {
        let text = json!({"execute": command, "arguments": arguments}).to_string();
        let sent = self.monitor.get_mut().write_all(text.as_bytes());
        sent.unwrap_or_else(|error| panic!("QEMU's monitor is gone at {command}: {error}"));
        loop {
            let answer = self.reply();
            assert!(
                answer["error"].is_null(),
                "QEMU refuses {command}: {answer}"
            );
            if !answer["return"].is_null() {
                return answer["return"].clone();
            }
            // An event.
        }
    }

    fn reply(&mut self) -> Value {
        let mut line = String::new();
        let count = self.monitor.read_line(&mut line);
        count.expect("an answer of QEMU's monitor");
        serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("QEMU is gone: {}", self.last_words()))
    }

    /// What the console has shown and nobody has read.
    fn last_words(&self) -> String {
        self.console.try_iter().collect::<Vec<_>>().join("\n")
    }

    /// Plugs a disk in, with a name that its driver in the machine shows as serial number. What the
    /// machine flushes is not forced to the host's disks.
    pub fn plug(&mut self, path: &Path, name: &str) {
        let kind = std::fs::metadata(path)
            .unwrap_or_else(|error| panic!("the disk {}: {error}", path.display()))
            .file_type();
        self.disks += 1;
        let node = format!("disk{}", self.disks);
        let driver = if kind.is_block_device() {
            "host_device"
        } else {
            "file"
        };
        self.ask(
            "blockdev-add",
            &json!({
                "driver": "raw",
                "node-name": node,
                "discard": "unmap",
                "cache": {"direct": false, "no-flush": true},
                "file": {
                    "driver": driver,
                    "filename": path,
                    "discard": "unmap",
                    "cache": {"direct": false, "no-flush": true},
                },
            }),
        );
        self.ask(
            "device_add",
            &json!({"driver": "virtio-blk-pci", "drive": node, "serial": name}),
        );
    }

    /// Types a line at the machine's console.
    pub fn type_line(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe to QEMU");
        let typed = input.write_all(format!("{line}\n").as_bytes());
        typed
            .and_then(|()| input.flush())
            .expect("QEMU takes what is typed");
    }

    /// The next line of the console.
    pub fn line(&self, until: Instant) -> Result<String, Silence> {
        let left = until.saturating_duration_since(Instant::now());
        self.console
            .recv_timeout(left)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => Silence::Late,
                RecvTimeoutError::Disconnected => Silence::Off,
            })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The connection that QEMU makes to its monitor's socket.
fn accept(listener: &UnixListener, child: &mut Child, console: &Receiver<String>) -> UnixStream {
    listener.set_nonblocking(true).expect("a socket");
    let begin = Instant::now();
    loop {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).expect("a socket");
            stream
                .set_read_timeout(Some(ANSWER_TIMEOUT))
                .expect("a socket");
            return stream;
        }
        let ended = child.try_wait().expect("whether QEMU runs");
        if ended.is_some() || begin.elapsed() > ANSWER_TIMEOUT {
            let _ = child.kill();
            let text: Vec<String> = console.iter().collect();
            panic!("QEMU did not come to its monitor: {}", text.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

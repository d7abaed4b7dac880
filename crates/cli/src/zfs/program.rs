//! `zfs program` (`zfs_do_channel_program`, cmd/zfs/zfs_main.c).

use std::io::Read;

use anyhow::Context;
use api::ZfsProgram;
use clap::Args;
use serde_json::Value;

use crate::client::Client;

/// Blanks before what is in something else (`dump_nvlist`, lib/libnvpair).
const INDENT: usize = 4;

/// Run a channel program: a script, within one transaction group.
#[derive(Debug, Args)]
pub struct Program {
    /// Print what it returns as JSON
    #[arg(short, long)]
    json: bool,
    /// The script may look and try, and change nothing
    #[arg(short = 'n')]
    read_only: bool,
    /// Instructions that it may run: 10000000 if nothing is said, 100000000 at most
    #[arg(short = 't', value_name = "INSTRUCTIONS")]
    instructions_max: Option<String>,
    /// Bytes of memory that it may take: 10485760 if nothing is said, 104857600 at most
    #[arg(short, value_name = "BYTES")]
    memory_bytes_max: Option<String>,
    pool: String,
    /// A file, or - for standard input
    script: String,
    /// What the script finds in argv
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Program {
    /// Has the daemon run it, and prints what it returned.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let instructions_max = self.instructions_max.as_deref().map(number).transpose()?;
        let memory_bytes_max = self.memory_bytes_max.as_deref().map(number).transpose()?;
        if memory_bytes_max.is_some_and(|bytes| i64::try_from(bytes).is_err()) {
            // Nothing can be returned that is so long.
            anyhow::bail!("Channel program execution failed:\nReturn value too large.");
        }
        let mut bytes = Vec::new();
        if self.script == "-" {
            let read = std::io::stdin().read_to_end(&mut bytes);
            read.context("cannot read 'standard input'")?;
        } else {
            bytes = std::fs::read(&self.script)
                .with_context(|| format!("cannot open '{}'", self.script))?;
        }
        let (script, is_bytes) = match String::from_utf8(bytes) {
            Ok(text) => (text, false),
            Err(error) => {
                let bytes = error.into_bytes();
                (bytes.into_iter().map(char::from).collect(), true)
            }
        };
        let reply = client.call(&ZfsProgram {
            pool: self.pool,
            script,
            is_bytes,
            arguments: self.arguments,
            instructions_max,
            memory_bytes_max,
            read_only: self.read_only,
            command: typed,
        })?;
        if self.json {
            println!("{}", serde_json::to_string(&reply.output)?);
        } else if reply.output.is_empty() {
            println!("Channel program fully executed and did not produce output.");
        } else {
            let mut out = String::new();
            for (name, value) in &reply.output {
                print_value(&mut out, INDENT, name, value);
            }
            print!("Channel program fully executed and produced output:\n{out}");
        }
        Ok(())
    }
}

/// A number as C has it: decimal, or with `0x` in hexadecimal, or with `0` in octal.
fn number(text: &str) -> anyhow::Result<u64> {
    let (digits, radix) = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    match u64::from_str_radix(digits, radix) {
        Ok(number) => Ok(number),
        Err(_) => bail_usage!("invalid argument '{text}': expected integer"),
    }
}

/// A value with its name, as OpenZFS prints a list of them.
fn print_value(out: &mut String, indent: usize, name: &str, value: &Value) {
    let blanks = " ".repeat(indent);
    match value {
        Value::Null => out.push_str(&format!("{blanks}{name}\n")),
        Value::Object(entries) => {
            out.push_str(&format!("{blanks}{name}:\n"));
            for (name, value) in entries {
                print_value(out, indent + INDENT, name, value);
            }
        }
        Value::String(text) => out.push_str(&format!("{blanks}{name}: '{text}'\n")),
        other => out.push_str(&format!("{blanks}{name}: {other}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a script returns is printed as OpenZFS prints it. Method: the example of its
    /// manual page, and what else there is.
    #[test]
    fn values_are_printed_as_lists() {
        let value = serde_json::json!({"baz": 2, "foo": "bar", "on": true, "none": null, "in": {}});
        let mut out = String::new();
        print_value(&mut out, INDENT, "return", &value);
        let expected = "    return:\n        baz: 2\n        foo: 'bar'\n        on: true\n\
                        \x20       none\n        in:\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn numbers_are_those_of_c() {
        assert_eq!(number("10").expect("decimal"), 10);
        assert_eq!(number("0x10").expect("hexadecimal"), 16);
        assert_eq!(number("010").expect("octal"), 8);
        assert_eq!(number("0").expect("zero"), 0);
        for wrong in ["", "x", "10k", "-1", "18446744073709551616"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }
}

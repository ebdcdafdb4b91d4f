//! Where a configuration comes from: the command line, the environment and two files, merged by one rule.
//!
//! A dynamic file wins over the command line, the command line over the environment, the environment over the general file.
//! All of them go through the same checks, now and whenever the files are read again. A refusal names the file, the line
//! and the key where a file is to blame.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{ArgAction, ArgMatches, Command};

use super::cli::{Failure, command, from_command};
use super::file::{self, Entry};
use super::secret::quoted_key;
use super::{Config, ConfigError, unsupported};

/// A larger file is no configuration.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Flags that name a file: they are for the command line and the environment.
const FILE_FLAGS: [&str; 3] = ["config", "dynamic-config-yaml", "dynamic-config-json"];

/// What may change while the router runs.
const RELOADABLE: [&str; 9] = [
    "static-backends",
    "static-models",
    "static-aliases",
    "static-model-types",
    "static-model-labels",
    "drain-backends",
    "routing-logic",
    "session-key",
    "prefix-min-match-length",
];

/// The command line, and the files that it names as they were read last.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Source {
    args: Vec<String>,
    files: Vec<Text>,
}

#[derive(Clone, PartialEq, Eq)]
struct Text {
    path: PathBuf,
    dynamic: bool,
    entries: Vec<Entry>,
}

/// It holds the command line, and with it perhaps a key.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source(…)")
    }
}

impl Source {
    /// Reads the files that the command line or the environment names.
    ///
    /// # Errors
    /// One line that names the file and what is wrong.
    pub fn read(args: &[String]) -> Result<Self, ConfigError> {
        let mut files = Vec::new();
        // What is wrong with the command line is told by its own check; no file is read then.
        if let Ok(named) = command().ignore_errors(true).try_get_matches_from(args) {
            for flag in FILE_FLAGS {
                files.extend(
                    path(&named, flag)
                        .map(|path| Text::read(path, flag != "config"))
                        .transpose()
                        .map_err(|line| ConfigError::new(&line))?,
                );
            }
        }
        Ok(Source { args: args.to_vec(), files })
    }

    /// The same command line with its files as they are now.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn again(&self) -> Result<Self, ConfigError> {
        Source::read(&self.args)
    }

    /// There is a dynamic file, which is to be watched.
    pub fn is_dynamic(&self) -> bool {
        self.files.iter().any(|file| file.dynamic)
    }

    /// The configuration that it asks for.
    ///
    /// # Errors
    /// [`Failure`]: help or version text, or the one line that says what is wrong and where.
    pub fn config(self) -> Result<Config, Failure> {
        let mut command = command().args_override_self(true);
        let mut args = self.args.clone();
        for file in &self.files {
            if file.dynamic {
                args.extend(file.entries.iter().filter_map(|entry| argument(entry, &command)));
            } else {
                command = with_defaults(command, &file.entries);
            }
        }
        match from_command(command, &args) {
            Ok(mut config) => {
                config.source = self;
                Ok(config)
            }
            Err(Failure::Refuse(error)) => Err(Failure::Refuse(ConfigError::new(&self.blame(&error.to_string())))),
            Err(print) => Err(print),
        }
    }

    /// The keys of its files that say something else in `other` and that only a restart puts into force.
    pub fn differs_for_good(&self, other: &Source) -> Vec<String> {
        let fixed = |source: &Source| {
            let entries = source.files.iter().flat_map(|file| file.entries.clone());
            entries
                .filter(|entry| !RELOADABLE.contains(&entry.flag.as_str()))
                .map(|entry| (entry.flag, entry.value))
                .collect()
        };
        let (own, others): (Vec<_>, Vec<_>) = (fixed(self), fixed(other));
        let only = |a: &[(String, String)], b: &[(String, String)]| {
            a.iter().filter(|pair| !b.contains(pair)).map(|(flag, _)| flag.replace('-', "_")).collect::<Vec<_>>()
        };
        let mut keys = [only(&own, &others), only(&others, &own)].concat();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Puts the place of the file's key in front that the line speaks of first.
    fn blame(&self, line: &str) -> String {
        let mut blamed: Option<(usize, String)> = None;
        for file in self.files.iter().rev() {
            for entry in &file.entries {
                if let Some(at) = mention(line, &entry.flag)
                    && blamed.as_ref().is_none_or(|(first, _)| at < *first)
                {
                    blamed = Some((at, format!("{}:{}", file.path.display(), entry.line)));
                }
            }
        }
        blamed.map_or_else(|| line.to_owned(), |(_, place)| format!("{place}: {line}"))
    }
}

/// Where the line speaks of this flag, and not of one whose name only begins like it.
fn mention(line: &str, flag: &str) -> Option<usize> {
    let name = format!("--{flag}");
    let ends = |at: usize| !line[at + name.len()..].starts_with(|c: char| c == '-' || c.is_ascii_alphanumeric());
    line.match_indices(&name).map(|(at, _)| at).find(|at| ends(*at))
}

fn path(matches: &ArgMatches, flag: &str) -> Option<PathBuf> {
    matches.try_get_one::<PathBuf>(&flag.replace('-', "_")).ok().flatten().cloned()
}

impl Text {
    fn read(path: PathBuf, dynamic: bool) -> Result<Self, String> {
        let text = contents(&path).map_err(|what| format!("{}: {what}", path.display()))?;
        let place = |line: Option<u64>| match line {
            Some(line) => format!("{}:{line}", path.display()),
            None => path.display().to_string(),
        };
        let mut entries = file::read(&text).map_err(|fault| format!("{}: {}", place(fault.line), fault.what))?;
        let command = command();
        for entry in &mut entries {
            known(entry, &command).map_err(|what| format!("{}: {what}", place(Some(entry.line))))?;
        }
        Ok(Text { path, dynamic, entries })
    }
}

fn contents(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("is larger than {MAX_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
}

/// Holds an entry against the flags that there are, and gives a switch that is off the form of its opposite.
fn known(entry: &mut Entry, command: &Command) -> Result<(), String> {
    let key = entry.flag.replace('-', "_");
    let flag = format!("--{}", entry.flag);
    if let Some(line) = unsupported::find([flag.as_str()]) {
        return Err(line.replacen(&flag, &format!("'{key}'"), 1));
    }
    let forbidden = ["help", "version"].iter().chain(&FILE_FLAGS).any(|name| *name == entry.flag);
    let names = |arg: &&clap::Arg| {
        arg.get_long() == Some(&entry.flag) || arg.get_all_aliases().unwrap_or_default().contains(&entry.flag.as_str())
    };
    let Some(arg) = command.get_arguments().find(names).filter(|_| !forbidden) else {
        return Err(format!("the key '{}' is not known", quoted_key(&key)));
    };
    if is_switch(arg) && !matches!(entry.value.as_str(), "true" | "false") {
        return Err(format!("'{key}' is on or off: write true or false"));
    }
    if let Some(name) = arg.get_long() {
        name.clone_into(&mut entry.flag);
    }
    if entry.flag == "static-backend-health-checks" && entry.value == "false" {
        "no-static-backend-health-checks".clone_into(&mut entry.flag);
        "true".clone_into(&mut entry.value);
    }
    Ok(())
}

fn is_switch(arg: &clap::Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// An entry as an argument; none for a switch that is off, as it is without an argument.
fn argument(entry: &Entry, command: &Command) -> Option<String> {
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(&entry.flag))?;
    match is_switch(arg) {
        true => (entry.value == "true").then(|| format!("--{}", entry.flag)),
        false => Some(format!("--{}={}", entry.flag, entry.value)),
    }
}

fn with_defaults(command: Command, entries: &[Entry]) -> Command {
    command.mut_args(|arg| match entries.iter().find(|entry| arg.get_long() == Some(&entry.flag)) {
        Some(entry) if is_switch(&arg) => arg.default_value(entry.value.clone()),
        // Hidden, since it may be a key.
        Some(entry) => arg.default_value(entry.value.clone()).hide_default_value(true),
        None => arg,
    })
}

//! Parses the crontab form of a schedule file: assignments, and one named job per line.

use super::job_spec::{FileError, JobOptions, JobSpec, OPTION_NAMES};

/// Parses a crontab. Returns the jobs of all valid lines, and the mistakes in the others.
pub(super) fn parse_crontab(text: &str) -> (Vec<JobSpec>, Vec<FileError>) {
    let folders = std::env::var("PATH").unwrap_or_default();
    let mut parser = CrontabParser { shell: "/bin/sh".to_owned(), path_dirs: folders, ..CrontabParser::default() };
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = match parse_assignment(line) {
            Some((key, value)) => parser.assign(key, value),
            None => parser.parse_job(number, line),
        };
        if let Err(message) = read {
            parser.errors.push(FileError { line: number, message });
        }
    }
    (parser.specs, parser.errors)
}

/// The state of the parser: the settings that apply to the lines below the current one, and the
/// jobs and mistakes above it.
#[derive(Default)]
struct CrontabParser {
    options: JobOptions,
    env: Vec<(String, String)>,
    shell: String,
    /// PATH: the folders with the jobs' programs.
    path_dirs: String,
    /// Whether schedules begin with a field for seconds.
    has_seconds: bool,
    specs: Vec<JobSpec>,
    errors: Vec<FileError>,
}

impl CrontabParser {
    /// Applies an assignment line to the jobs below it: an option, or a variable of their
    /// environment.
    fn assign(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "CRON_SECONDS" => {
                self.has_seconds = match value {
                    "yes" | "1" | "true" => true,
                    "no" | "0" | "false" => false,
                    _ => return Err("CRON_SECONDS is yes or no".to_owned()),
                };
                return Ok(());
            }
            "CRON_TZ" => return self.options.set("zone", value),
            // The system's cron mails the output. Ignoring MAILTO silently would lose that output. An
            // empty value disables mail, so it needs no error.
            "MAILTO" if !value.is_empty() => {
                return Err("leasehold sends no mail: leave MAILTO out, watch the log or `leasehold cron status --check`, or have the command mail its output".to_owned());
            }
            "TZ" => self.options.set("zone", value)?,
            "SHELL" => value.clone_into(&mut self.shell),
            "PATH" => value.clone_into(&mut self.path_dirs),
            _ => {
                if let Some(option) = key.strip_prefix("CRON_") {
                    let option = option.to_ascii_lowercase().replace('_', "-");
                    return self.options.set(&option, value);
                }
            }
        }
        self.env.retain(|(known, _)| known != key);
        self.env.push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    /// Splits the user column of /etc/crontab from the command after it; `None` if there is none.
    /// `mail` is both a user and a program: if PATH has such a program, the word is the program.
    fn split_user_column<'a>(&self, command: &'a str) -> Option<(&'a str, &'a str)> {
        let (user, command) = command.split_once(char::is_whitespace)?;
        let command = command.trim_start();
        let is_user_column = !command.is_empty() && is_system_user(user) && !is_program(user, &self.path_dirs);
        is_user_column.then_some((user, command))
    }

    /// Splits off a word that is probably a user column, although this host has no such user: it is
    /// neither a program nor a word of the shell, and the path of a program follows it.
    fn split_unknown_user_column<'a>(&self, command: &'a str) -> Option<(&'a str, &'a str)> {
        let (user, command) = command.split_once(char::is_whitespace)?;
        let command = command.trim_start();
        let is_user_column = command.starts_with('/')
            && could_be_user(user)
            && !SHELL_WORDS.contains(&user)
            && !is_program(user, &self.path_dirs);
        is_user_column.then_some((user, command))
    }

    /// The error for a job's line without a name, as in the system's crontab, with the corrected
    /// line.
    fn missing_name_error(&self, line: &str) -> String {
        // A tab separates fields in a crontab, but misaligns text on a terminal.
        let line = &line.split('\t').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let missing = "this line has no name, and the fleet stores a job's record under its name";
        let (fields, command) = split_schedule(line, self.has_seconds).unwrap_or_default();
        match self.split_user_column(command).or_else(|| self.split_unknown_user_column(command)) {
            None => {
                let name = suggest_job_name(command);
                format!("{missing}: write `{name}: {line}`, and keep the name from then on")
            }
            Some((user, command)) => {
                let name = suggest_job_name(command);
                format!(
                    "{missing}, and it has the user {user} before its command, as /etc/crontab has (`{line}`): remove `{user}` and write \
                     `{name}: {fields} {command}`, and keep the name from then on; {RUNS_AS_OUR_USER}"
                )
            }
        }
    }

    /// Parses a job's line, whose number is `line`, and adds the job.
    fn parse_job(&mut self, line: usize, text: &str) -> Result<(), String> {
        let Some((name, brackets, rest)) = split_name_and_options(text) else {
            return Err(self.missing_name_error(text));
        };
        if let Some(other) = self.specs.iter().find(|spec| spec.name == name) {
            return Err(format!("there is a job {name:?} in line {} already", other.line));
        }
        let mut options = self.options.clone();
        for pair in brackets.split([' ', ',', '\t']).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                format!("{pair:?} is no option: write {}=..., in brackets", OPTION_NAMES.join("=..., "))
            })?;
            options.set(key, value)?;
        }
        let (schedule, command) = split_schedule(rest, self.has_seconds)?;
        if !self.has_seconds
            && !schedule.starts_with('@')
            && command.split_whitespace().next().is_some_and(is_schedule_field)
        {
            return Err("this line has six fields: write CRON_SECONDS=yes in a line above it".to_owned());
        }
        if command.is_empty() {
            return Err(format!("there is no command after {schedule:?}"));
        }
        if let Some((user, command)) = self.split_user_column(command) {
            let name = if brackets.is_empty() { name.to_owned() } else { format!("{name} [{brackets}]") };
            return Err(format!(
                "this line has the user {user} before its command, as /etc/crontab has: remove `{user}` and write `{name}: {schedule} {command}`; {RUNS_AS_OUR_USER}"
            ));
        }
        let warning = self.split_unknown_user_column(command).map(|(user, command)| {
            let name = if brackets.is_empty() { name.to_owned() } else { format!("{name} [{brackets}]") };
            format!(
                "`{user}` is no program here, and looks like the user that /etc/crontab has before a command: if it is, write \
                 `{name}: {schedule} {command}`; {RUNS_AS_OUR_USER}"
            )
        });
        let command = vec![self.shell.clone().into(), "-c".into(), command.into()];
        let (name, env) = (name.to_owned(), self.env.clone());
        self.specs.push(JobSpec { line, name, schedule, command, env, options, warning });
        Ok(())
    }
}

/// Words of the shell that may stand before the path of a program or a folder.
const SHELL_WORDS: [&str; 28] = [
    "alias", "builtin", "cd", "chdir", "command", "do", "else", "elif", "eval", "exec", "export", "hash", "if",
    "local", "nohup", "popd", "pushd", "readonly", "set", "source", "test", "then", "time", "trap", "type", "umask",
    "until", "while",
];

/// Why a line may not name a user.
const RUNS_AS_OUR_USER: &str = "every command runs as the user that leasehold runs as";

/// Parses `NAME = value`, whose value may be in quotes; `None` for any other line.
fn parse_assignment(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim_end(), value.trim());
    let mut letters = key.chars();
    let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !first || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    Some((key, quoted('"').or_else(|| quoted('\'')).unwrap_or(value)))
}

/// Splits `NAME: rest` or `NAME [options]: rest` into name, options (empty without brackets) and
/// rest; `None` for any other line.
fn split_name_and_options(line: &str) -> Option<(&str, &str, &str)> {
    let end = line.find(|c: char| !(c.is_alphanumeric() || "._/+-".contains(c)))?;
    let (name, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let (brackets, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let rest = rest.trim_start().strip_prefix(':')?;
    (!name.is_empty()).then_some((name, brackets, rest.trim()))
}

/// Whether the word can only be a schedule field: no command is called `*`, `*/5` or `1-5`.
fn is_schedule_field(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_digit() || "*/,-?".contains(c))
}

/// The job's name to suggest for a command: the name of its program if that is valid, else
/// `nightly`.
fn suggest_job_name(command: &str) -> &str {
    let word = command.split_whitespace().next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let word = word.split('.').next().unwrap_or_default();
    let fits = !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    if fits { word } else { "nightly" }
}

/// Whether this host has a user of this name.
fn is_system_user(word: &str) -> bool {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    word == "root" || users.lines().any(|line| line.split(':').next() == Some(word))
}

/// Whether the word has the form of a user's name.
fn could_be_user(word: &str) -> bool {
    let first = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    first && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Whether one of the folders in `path_dirs` has a program of this name; true for any path.
fn is_program(word: &str, path_dirs: &str) -> bool {
    word.contains('/') || std::env::split_paths(path_dirs).any(|folder| folder.join(word).is_file())
}

/// Splits a job's line after its name into the schedule's fields and the command, which may be
/// empty.
fn split_schedule(text: &str, has_seconds: bool) -> Result<(String, &str), String> {
    let fields = match text {
        _ if text.starts_with("@every") => 2,
        _ if text.starts_with('@') => 1,
        _ if has_seconds => 6,
        _ => 5,
    };
    let mut rest = text;
    let mut words = Vec::new();
    for _ in 0..fields {
        let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if word.is_empty() {
            let what = if has_seconds { "six fields, with seconds first," } else { "five fields" };
            return Err(format!("a schedule of {what} and a command are needed, but this line ends before that"));
        }
        words.push(word);
        rest = after.trim_start();
    }
    Ok((words.join(" "), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command_words(spec: &JobSpec) -> Vec<String> {
        spec.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn jobs_are_parsed_with_name_schedule_and_command() {
        let text = "\
            # what is sent at night\n\n\
            CRON_TZ = Europe/Berlin\n\
            PATH=\"/usr/bin:/bin\"\n\
            nightly: 0 3 * * *  ./send --all 50% # as it is\n\
            report [crash=retry:3, missed=once max-hold=1h]: @daily ./report\n\
            SHELL=/bin/bash\n\
            beat:@every 90s true\n\
            CRON_SECONDS=yes\n\
            probe  : */10 * * * * 1-5 ./probe\n";
        let (specs, mistakes) = parse_crontab(text);
        assert_eq!(mistakes, []);
        let seen: Vec<_> = specs.iter().map(|spec| (spec.line, spec.name.as_str(), spec.schedule.as_str())).collect();
        assert_eq!(
            seen,
            [
                (5, "nightly", "0 3 * * *"),
                (6, "report", "@daily"),
                (8, "beat", "@every 90s"),
                (10, "probe", "*/10 * * * * 1-5"),
            ]
        );
        assert_eq!(command_words(&specs[0]), ["/bin/sh", "-c", "./send --all 50% # as it is"]);
        assert_eq!(command_words(&specs[2]), ["/bin/bash", "-c", "true"]);
        assert_eq!(specs[0].env, [("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
        let mut expected = JobOptions::default();
        for (key, value) in [("zone", "Europe/Berlin"), ("crash", "retry:3"), ("missed", "once"), ("max-hold", "1h")] {
            expected.set(key, value).unwrap();
        }
        assert_eq!(specs[1].options, expected);
        for spec in &specs {
            spec.build(std::time::Duration::from_secs(30)).unwrap();
        }
    }

    #[test]
    fn every_mistake_is_reported_with_its_line_and_a_correction() {
        let text = "\
            0 3 * * * /opt/jobs/backup.sh --full\n\
            CRON_TZ=Mars/Olympus\n\
            a: 0 3 * *\n\
            b: 0 3 * * *\n\
            c [crash=never]: 0 3 * * * x\n\
            d [colour=blue]: 0 3 * * * x\n\
            e: @daily x\n\
            e: @daily y\n\
            f [zone]: @daily x\n\
            CRON_SECONDS=maybe\n";
        let (specs, mistakes) = parse_crontab(text);
        assert_eq!(specs.len(), 1);
        let expected = [
            (1, "write `backup: 0 3 * * * /opt/jobs/backup.sh --full`"),
            (2, "no time zone \"Mars/Olympus\""),
            (3, "this line ends before that"),
            (4, "no command"),
            (5, "write at-most-once, or retry:3"),
            (6, "no option \"colour\": there are zone, crash"),
            (8, "a job \"e\" in line 7 already"),
            (9, "\"zone\" is no option"),
            (10, "yes or no"),
        ];
        assert_eq!(mistakes.len(), expected.len(), "{mistakes:?}");
        for (mistake, (line, message)) in mistakes.iter().zip(expected) {
            assert_eq!(mistake.line, line);
            assert!(mistake.message.contains(message), "{mistake:?}");
        }
    }
}

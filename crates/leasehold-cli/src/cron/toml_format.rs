//! Parses the TOML form of a schedule file: one table per job.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::job_spec::{FileError, JobOptions, JobSpec, OPTION_NAMES};

/// Parses a schedule file in TOML. Returns its valid jobs and all its mistakes; only the first
/// mistake if it is not valid TOML.
pub(super) fn parse_toml(text: &str) -> (Vec<JobSpec>, Vec<FileError>) {
    let mut parser = TomlParser { text, specs: Vec::new(), errors: Vec::new() };
    match DeTable::parse(text) {
        Ok(table) => parser.parse_top_level(table.get_ref()),
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            parser.add_error(at, error.message());
        }
    }
    parser.specs.sort_by_key(|spec| spec.line);
    (parser.specs, parser.errors)
}

/// The state of the parser: the file's text, and the jobs and mistakes found so far.
struct TomlParser<'a> {
    text: &'a str,
    specs: Vec<JobSpec>,
    errors: Vec<FileError>,
}

impl TomlParser<'_> {
    /// Adds a mistake at this byte offset of the file.
    fn add_error(&mut self, offset: usize, message: impl Into<String>) {
        let line = self.line_of(offset);
        self.errors.push(FileError { line, message: message.into() });
    }

    /// The number of the line, from 1, that contains this byte offset.
    fn line_of(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    /// Parses the keys above all jobs, which are the jobs' defaults, and then each `[job.NAME]`.
    fn parse_top_level(&mut self, table: &DeTable<'_>) {
        let (mut options, mut env) = (JobOptions::default(), Vec::new());
        for (key, value) in table.iter().filter(|(key, _)| key.get_ref() != "job") {
            if !self.parse_common_key(&mut options, &mut env, key.get_ref(), value) {
                let known = OPTION_NAMES.join(", ");
                let what = format!("there is no {:?} here: there are [job.NAME], env, {known}", key.get_ref());
                self.add_error(key.span().start, what);
            }
        }
        let Some((_, jobs)) = table.iter().find(|(key, _)| key.get_ref() == "job") else { return };
        let DeValue::Table(jobs) = jobs.get_ref() else {
            self.add_error(jobs.span().start, "write [job.NAME], and the job's keys below it");
            return;
        };
        for (name, job) in jobs {
            match job.get_ref() {
                DeValue::Table(table) => {
                    self.parse_job(name.get_ref(), name.span().start, table, options.clone(), env.clone());
                }
                _ => self.add_error(
                    name.span().start,
                    format!("write [job.{}], and the job's keys below it", name.get_ref()),
                ),
            }
        }
    }

    /// Parses a key that is allowed both in a job and at the top level into `options` or `env`.
    /// Returns `false` for any other key.
    fn parse_common_key(
        &mut self,
        options: &mut JobOptions,
        env: &mut Vec<(String, String)>,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> bool {
        let at = value.span().start;
        if key == "env" {
            let DeValue::Table(table) = value.get_ref() else {
                self.add_error(at, "env is a table: env = { LANG = \"C\" }");
                return true;
            };
            for (name, value) in table {
                match value.get_ref().as_str() {
                    Some(text) => {
                        env.retain(|(known, _)| known != name.get_ref());
                        env.push((name.get_ref().to_string(), text.to_owned()));
                    }
                    None => self.add_error(value.span().start, format!("{} must be a quoted string", name.get_ref())),
                }
            }
            return true;
        }
        if !OPTION_NAMES.contains(&key) {
            return false;
        }
        match value.get_ref().as_str() {
            Some(text) => {
                if let Err(what) = options.set(key, text) {
                    self.add_error(at, what);
                }
            }
            None => self.add_error(at, format!("{key} must be a quoted string: {key} = \"...\"")),
        }
        true
    }

    /// Parses the keys of a `[job.NAME]` at this byte offset, and adds the job.
    fn parse_job(
        &mut self,
        name: &str,
        offset: usize,
        table: &DeTable<'_>,
        mut options: JobOptions,
        mut env: Vec<(String, String)>,
    ) {
        let (mut schedule, mut command) = (None, Vec::new());
        for (key, value) in table {
            let start = value.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("schedule", DeValue::String(text)) => schedule = Some(text.to_string()),
                ("command", DeValue::String(text)) if command.is_empty() => {
                    command = vec!["/bin/sh".into(), "-c".into(), text.as_ref().into()];
                }
                ("argv", DeValue::Array(words)) if command.is_empty() => {
                    for word in words {
                        match word.get_ref().as_str() {
                            Some(word) => command.push(word.into()),
                            None => self.add_error(word.span().start, "argv is a list of quoted strings"),
                        }
                    }
                }
                ("command" | "argv", _) if !command.is_empty() => {
                    self.add_error(start, "give either a command (for /bin/sh -c) or an argv");
                }
                ("schedule" | "command", _) => {
                    self.add_error(start, format!("{} must be a quoted string", key.get_ref()))
                }
                ("argv", _) => self.add_error(start, "argv is a list: argv = [\"./send\", \"--all\"]"),
                (other, _) => {
                    if !self.parse_common_key(&mut options, &mut env, other, value) {
                        let known = OPTION_NAMES.join(", ");
                        let what = format!("a job has no {other:?}: it has schedule, command or argv, env, {known}");
                        self.add_error(key.span().start, what);
                    }
                }
            }
        }
        let Some(schedule) = schedule else {
            return self.add_error(offset, format!("the job {name:?} has no schedule: schedule = \"0 3 * * *\""));
        };
        if command.is_empty() {
            return self.add_error(offset, format!("the job {name:?} has no command: command = \"./send --all\""));
        }
        let line = self.line_of(offset);
        self.specs.push(JobSpec { line, name: name.to_owned(), schedule, command, env, options, warning: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_tables_with_defaults_above_them() {
        let text = "\
zone = \"Europe/Berlin\"\n\
[env]\nLANG = \"C\"\n\
[job.nightly]\nschedule = \"0 3 * * *\"\ncommand = \"./send --all\"\n\
[job.\"a b\"]\nschedule = \"@daily\"\nargv = [\"./report\", \"a b\"]\ncrash = \"retry:3\"\nmax-hold = \"1h\"\nenv = { LANG = \"de\" }\n";
        let (specs, mistakes) = parse_toml(text);
        assert_eq!(mistakes, []);
        assert_eq!(specs.iter().map(|spec| (spec.line, &*spec.name)).collect::<Vec<_>>(), [(4, "nightly"), (7, "a b")]);
        assert_eq!(specs[0].command, ["/bin/sh", "-c", "./send --all"]);
        assert_eq!(specs[1].command, ["./report", "a b"]);
        assert_eq!(specs[0].env, [("LANG".to_owned(), "C".to_owned())]);
        assert_eq!(specs[1].env, [("LANG".to_owned(), "de".to_owned())]);
        let mut zone = JobOptions::default();
        zone.set("zone", "Europe/Berlin").unwrap();
        assert_eq!(specs[0].options, zone);
        assert_ne!(specs[1].options, zone);
    }

    #[test]
    fn every_mistake_is_reported_with_its_line_and_a_correction() {
        let text = "\
colour = \"blue\"\n\
[job.a]\nschedule = 5\ncommand = \"x\"\n\
[job.b]\nschedule = \"@daily\"\n\
[job.c]\nschedule = \"@daily\"\ncommand = \"x\"\nargv = [\"x\"]\n\
[job.d]\nschedule = \"@daily\"\ncommand = \"x\"\nmissed = \"maybe\"\nmax-hold = 60\nfoo = 1\n";
        let (_, mistakes) = parse_toml(text);
        for (line, message) in [
            (1, "there is no \"colour\" here"),
            (3, "schedule must be a quoted string"),
            (2, "has no schedule"),
            (5, "has no command"),
            (9, "either a command"),
            (14, "write skip, once"),
            (15, "max-hold must be a quoted string"),
            (16, "a job has no \"foo\""),
        ] {
            let found = mistakes.iter().any(|mistake| mistake.line == line && mistake.message.contains(message));
            assert!(found, "{line}: {message}: {mistakes:#?}");
        }
        let (_, mistakes) = parse_toml("[job.a\nschedule = 1\n");
        assert_eq!(mistakes.len(), 1);
        assert_eq!(mistakes[0].line, 1, "{mistakes:?}");
    }
}

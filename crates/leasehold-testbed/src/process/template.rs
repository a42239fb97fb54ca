//! A data folder that is created once on this machine and copied for each server: creating one is
//! much slower than a start.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
};

use super::{Binary, InitStep};

/// Copies the template, and creates it first if it is missing, while other processes wait. Only a
/// complete template is moved into place. A template of another user is not trusted. A second
/// template that is created concurrently does no harm: its place is already used.
const COPY_SCRIPT: &str = r#"
set -eu
umask 077
template=$1
make=$2
if [ ! -O "$template/made" ]; then
    # Without the lock it is created twice, which does no harm.
    if ( : >> "$template.lock" ) 2>/dev/null; then
        exec 9>>"$template.lock"
        flock -w 120 9 || :
    fi
fi
if [ ! -O "$template/made" ]; then
    draft=$(mktemp -d "$template.XXXXXX")
    trap 'rm -rf "$draft"' EXIT
    ( cd "$draft" && eval "$make" )
    : > "$draft/made"
    mv -T "$draft" "$template" 2>/dev/null || template=$draft
fi
exec 9>&-
cp -a --reflink=auto "$template/data/." .
"#;

/// How the data folder of one kind of server is created, once on this machine.
pub(crate) struct DataTemplate {
    /// The kind of server, as a part of the template folder's name.
    pub(crate) name: &'static str,
    /// The server's program: when its file changes, a new template is created.
    pub(crate) program: PathBuf,
    /// Shell commands that create `./data`.
    pub(crate) create_commands: String,
}

impl DataTemplate {
    /// The step that fills an empty data folder from the template.
    pub(crate) fn init_step(&self) -> InitStep {
        let folder = env::temp_dir().join(format!("leasehold-template-{}-{:016x}", self.name, self.cache_key()));
        let arguments = ["-c", COPY_SCRIPT, "sh", &folder.to_string_lossy(), &self.create_commands];
        InitStep { binary: Binary::new("sh", "dash"), arguments: arguments.map(str::to_owned).to_vec() }
    }

    /// Equal only for the same program, commands and user.
    fn cache_key(&self) -> u64 {
        let program = fs::metadata(&self.program).ok().map(|program| (program.len(), program.modified().ok()));
        let user = rustix::process::geteuid().as_raw();
        let mut hasher = DefaultHasher::new();
        (COPY_SCRIPT, &self.create_commands, &self.program, program, user).hash(&mut hasher);
        hasher.finish()
    }
}

//! `leasehold engines`: the capabilities of each engine, including those that are not in this
//! build.

use clap::{Args, ValueEnum};
use leasehold::engine::sql::{self, Dialect};
use leasehold::engine::{self, Capabilities, Entry, Expiry, Fairness, Fencing, Reach, Technique};
use serde::Serialize;

use crate::duration::human;
use crate::exit::Failure;
use crate::output;

// Lines stay within 79 characters, so that an 80-column terminal does not wrap them.
const AFTER: &str = "\
Examples:
  leasehold engines                 what each engine can do
  leasehold engines --json          the same, for programs
  leasehold engines --ddl mysql     the tables that the locks need
  leasehold engines --ddl mysql | mysql -u root -p shop
  leasehold engines --ddl postgres --schema ops | psql -U postgres shop

Tables:
  mysql: and postgres: make their tables at first use. Where the user in the
  URL may not, an administrator runs what --ddl prints, and grants the rights
  that stand there as comments: SELECT, INSERT and UPDATE, and no others.
  --table and --schema are the URL's table= and schema=.";

/// List the engines and their capabilities
///
/// With --ddl: print the statements that create a database engine's tables, for an administrator to
/// run.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER, after_help = "`leasehold engines --help` has examples.")]
pub(crate) struct EnginesArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Print the CREATE TABLE statements for this database, and the privileges that are needed
    #[arg(long, value_name = "DATABASE", conflicts_with = "json")]
    ddl: Option<Database>,
    /// The prefix of the tables' names, as table= in the URL [default: leasehold]
    #[arg(long, value_name = "NAME", requires = "ddl")]
    table: Option<String>,
    /// The schema of the tables, as schema= in the URL; PostgreSQL only
    #[arg(long, value_name = "NAME", requires = "ddl")]
    schema: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Database {
    /// MySQL and MariaDB
    Mysql,
    /// PostgreSQL
    Postgres,
}

#[derive(Debug, Serialize)]
struct EngineJson {
    scheme: &'static str,
    feature: &'static str,
    example: &'static str,
    about: &'static str,
    in_this_build: bool,
    capabilities: Option<CapabilitiesJson>,
    techniques: Vec<TechniqueJson>,
}

#[derive(Debug, Serialize)]
struct TechniqueJson {
    technique: &'static str,
    about: &'static str,
    capabilities: CapabilitiesJson,
}

#[derive(Debug, Serialize)]
struct CapabilitiesJson {
    reach: &'static str,
    shared: bool,
    permits: bool,
    reentry: bool,
    fairness: &'static str,
    fencing: &'static str,
    expiry: &'static str,
    inspection: bool,
    eviction: bool,
    records: bool,
    min_ttl_seconds: f64,
    max_ttl_seconds: f64,
    survives: &'static str,
    breaks: &'static str,
    caution: &'static str,
}

impl From<&Capabilities> for CapabilitiesJson {
    fn from(can: &Capabilities) -> Self {
        Self {
            reach: reach(can.reach),
            shared: can.shared,
            permits: can.permits,
            reentry: can.reentry,
            fairness: fairness(can.fairness),
            fencing: fencing(can.fencing),
            expiry: match can.expiry {
                Expiry::Lease => "lease",
                Expiry::LeaseOrDeath => "lease-or-death",
            },
            inspection: can.inspection,
            eviction: can.eviction,
            records: can.records,
            min_ttl_seconds: can.min_ttl.as_secs_f64(),
            max_ttl_seconds: can.max_ttl.as_secs_f64(),
            survives: can.survives,
            breaks: can.breaks,
            caution: can.caution,
        }
    }
}

pub(crate) fn engines(args: &EnginesArgs) -> Result<u8, Failure> {
    let dialect = match args.ddl {
        None => return list(args.json),
        Some(Database::Mysql) => Dialect::MySql,
        Some(Database::Postgres) => Dialect::Postgres,
    };
    output::out(&sql::ddl(dialect, args.table.as_deref(), args.schema.as_deref())?)?;
    Ok(0)
}

fn list(json: bool) -> Result<u8, Failure> {
    let entries = engine::entries();
    let text = if json {
        output::json(&entries.iter().map(entry_json).collect::<Vec<_>>())
    } else {
        let mut text = table(&entries);
        entries.iter().for_each(|entry| text.push_str(&more(entry)));
        text
    };
    output::out(&text)?;
    Ok(0)
}

fn entry_json(entry: &Entry) -> EngineJson {
    EngineJson {
        scheme: entry.scheme,
        feature: entry.feature,
        example: entry.example,
        about: entry.about,
        in_this_build: entry.capabilities.is_some(),
        capabilities: entry.capabilities.as_ref().map(CapabilitiesJson::from),
        techniques: entry.techniques.iter().map(technique_json).collect(),
    }
}

fn technique_json(one: &Technique) -> TechniqueJson {
    TechniqueJson { technique: one.name, about: one.about, capabilities: (&one.capabilities).into() }
}

fn table(entries: &[Entry]) -> String {
    let mut table = output::table(&[
        "ENGINE",
        "SHARED BY",
        "MODES",
        "ORDER",
        "TOKENS",
        "FREED BY",
        "RE-ENTRY",
        "SEE",
        "EVICT",
        "RECORDS",
        "TTL",
    ]);
    for entry in entries {
        let scheme = format!("{}:", entry.scheme);
        match &entry.capabilities {
            Some(can) => table.add_row(row(scheme, can)),
            None => table.add_row([scheme, "not in this build".to_owned()]),
        };
        // The first technique is the engine's default, in the row above.
        for one in entry.techniques.iter().skip(1) {
            table.add_row(row(format!("  {}", one.name), &one.capabilities));
        }
    }
    output::wide_table_text(&table)
}

fn row(scheme: String, can: &Capabilities) -> [String; 11] {
    let modes = [("exclusive", true), ("shared", can.shared), ("slots", can.permits)];
    let modes: Vec<_> = modes.into_iter().filter(|(_, can)| *can).map(|(mode, _)| mode).collect();
    let freed = match can.expiry {
        Expiry::Lease => "lease's end",
        Expiry::LeaseOrDeath => "lease's end, holder's death",
    };
    [
        scheme,
        reach(can.reach).to_owned(),
        modes.join(" "),
        fairness(can.fairness).to_owned(),
        fencing(can.fencing).to_owned(),
        freed.to_owned(),
        yes(can.reentry),
        yes(can.inspection),
        yes(can.eviction),
        yes(can.records),
        format!("{} to {}", human(can.min_ttl), human(can.max_ttl)),
    ]
}

fn more(entry: &Entry) -> String {
    let mut text = format!("\n{}:  {}\n  like      {}\n", entry.scheme, entry.about, entry.example);
    match &entry.capabilities {
        Some(can) if entry.techniques.is_empty() => text.push_str(&faults(can, "  ")),
        Some(_) => {
            for one in &entry.techniques {
                text.push_str(&format!("  ?technique={}  {}\n", one.name, one.about));
                text.push_str(&faults(&one.capabilities, "    "));
            }
        }
        None => text.push_str(&format!("  needs     cargo feature `{}`\n", entry.feature)),
    }
    text
}

fn faults(can: &Capabilities, indent: &str) -> String {
    let mut text = format!("{indent}survives  {}\n{indent}breaks    {}\n", can.survives, can.breaks);
    if !can.caution.is_empty() {
        text.push_str(&format!("{indent}caution   {}\n", can.caution));
    }
    text
}

fn reach(reach: Reach) -> &'static str {
    match reach {
        Reach::Process => "process",
        Reach::Host => "host",
        Reach::Network => "network",
    }
}

fn fairness(fairness: Fairness) -> &'static str {
    match fairness {
        Fairness::Fifo => "fifo",
        Fairness::None => "none",
    }
}

fn fencing(fencing: Fencing) -> &'static str {
    match fencing {
        Fencing::Volatile => "volatile",
        Fencing::Durable => "durable",
    }
}

fn yes(can: bool) -> String {
    if can { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_the_help_is_broken_by_a_terminal() {
        for line in AFTER.lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }
}

//! `leasehold engines`: what each engine can do, also those that are not in this build.

use leasehold::engine::{self, Capabilities, Entry, Expiry, Fairness, Fencing, Reach};
use serde::Serialize;

use crate::args::JsonArg;
use crate::duration::human;
use crate::exit::Failure;
use crate::output;

#[derive(Debug, Serialize)]
struct EngineJson {
    scheme: &'static str,
    feature: &'static str,
    example: &'static str,
    about: &'static str,
    in_this_build: bool,
    capabilities: Option<CapabilitiesJson>,
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
    min_ttl_seconds: f64,
    max_ttl_seconds: f64,
    survives: &'static str,
    breaks: &'static str,
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
            min_ttl_seconds: can.min_ttl.as_secs_f64(),
            max_ttl_seconds: can.max_ttl.as_secs_f64(),
            survives: can.survives,
            breaks: can.breaks,
        }
    }
}

pub(crate) fn list(args: &JsonArg) -> Result<u8, Failure> {
    let entries = engine::entries();
    let text = if args.json {
        output::json(&entries.iter().map(json).collect::<Vec<_>>())
    } else {
        let mut text = table(&entries);
        entries.iter().for_each(|entry| text.push_str(&more(entry)));
        text
    };
    output::out(&text)?;
    Ok(0)
}

fn json(entry: &Entry) -> EngineJson {
    EngineJson {
        scheme: entry.scheme,
        feature: entry.feature,
        example: entry.example,
        about: entry.about,
        in_this_build: entry.capabilities.is_some(),
        capabilities: entry.capabilities.as_ref().map(CapabilitiesJson::from),
    }
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
        "TTL",
    ]);
    for entry in entries {
        let scheme = format!("{}:", entry.scheme);
        match &entry.capabilities {
            Some(can) => table.add_row(row(scheme, can)),
            None => table.add_row([scheme, "not in this build".to_owned()]),
        };
    }
    output::table_text(&table)
}

fn row(scheme: String, can: &Capabilities) -> [String; 10] {
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
        format!("{} to {}", human(can.min_ttl), human(can.max_ttl)),
    ]
}

fn more(entry: &Entry) -> String {
    let mut text = format!("\n{}:  {}\n  like      {}\n", entry.scheme, entry.about, entry.example);
    match &entry.capabilities {
        Some(can) => {
            text.push_str(&format!("  survives  {}\n  breaks    {}\n", can.survives, can.breaks));
        }
        None => text.push_str(&format!("  needs     cargo feature `{}`\n", entry.feature)),
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

//! `leasehold ls` and `leasehold show`.

use leasehold::LockName;
use leasehold::engine::{LockView, PartyView};

use crate::args::{LsArgs, ShowArgs};
use crate::duration::human;
use crate::exit::{self, Failure};
use crate::output::{self, Colour, clean};
use crate::view::{self, LockJson};

/// Lists all locks that are held or waited for, one row each.
pub(crate) async fn list(args: LsArgs) -> Result<u8, Failure> {
    let (views, url) = args.engine.ask(async |locks| locks.list(&args.prefix).await).await?;
    let text = if args.output.json {
        output::json(&views.iter().map(|view| LockJson::new(view, &url)).collect::<Vec<_>>())
    } else {
        list_text(&views, &url)
    };
    output::out(&text)?;
    Ok(say_troubles(&views, &url))
}

/// Reports damaged locks; returns the exit code.
fn say_troubles(views: &[LockView], url: &str) -> u8 {
    let mut code = 0;
    for view in views {
        if let Some(trouble) = &view.trouble {
            output::say(&format!("{url}: lock {}: {trouble}", clean(view.name.as_str())));
            code = exit::UNAVAILABLE;
        }
    }
    code
}

fn list_text(views: &[LockView], url: &str) -> String {
    if views.is_empty() {
        return format!("no locks held or awaited on {url}\n");
    }
    let mut table = output::table(&["NAME", "MODE", "HOLDER", "TOKEN", "HELD", "LEFT", "WAITING", "DOING"]);
    for view in views {
        let name = clean(view.name.as_str()).into_owned();
        let Some(first) = view.holders.first() else {
            let waiting = view.waiters.len().to_string();
            let nobody = if view.trouble.is_some() { "damaged" } else { "nobody" };
            table.add_row([name, "-".into(), nobody.into(), "-".into(), "-".into(), "-".into(), waiting]);
            continue;
        };
        let others = view.holders.len() - 1;
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        table.add_row([
            name,
            first.mode.to_string(),
            format!("{}{more}", view::process(first)),
            view::token(first.token),
            human(first.age),
            view::left(first.left),
            waiting(&view.waiters),
            view::doing(first),
        ]);
    }
    let locks = output::count(views.len(), "lock");
    format!("{}\n{locks} on {url}\n", output::with_bold_head(&output::table_text(&table)))
}

/// The number of waiters, and how long the first has waited.
fn waiting(waiters: &[PartyView]) -> String {
    match waiters.iter().map(|waiter| waiter.age).max() {
        None => "-".to_owned(),
        Some(oldest) => format!("{} ({})", waiters.len(), human(oldest)),
    }
}

/// Shows everything about one lock.
pub(crate) async fn show(args: ShowArgs) -> Result<u8, Failure> {
    let name = LockName::new(&args.name)?;
    let (view, url) = args.engine.ask(async |locks| locks.inspect(&name).await).await?;
    let text = if args.output.json { output::json(&LockJson::new(&view, &url)) } else { show_text(&view, &url) };
    output::out(&text)?;
    Ok(say_troubles(std::slice::from_ref(&view), &url))
}

fn show_text(view: &LockView, url: &str) -> String {
    let mut text = format!("lock        {}\nengine      {url}\n", clean(view.name.as_str()));
    let state = match (view.holders.as_slice(), view.waiters.is_empty()) {
        _ if view.trouble.is_some() => "damaged".to_owned(),
        ([], true) => "free".to_owned(),
        ([], false) => "about to be granted".to_owned(),
        ([only], _) => format!("held ({})", only.mode),
        ([first, ..], _) => format!("held by {} ({} each)", view.holders.len(), first.mode),
    };
    let colour = match (view.trouble.is_some(), view.holders.is_empty()) {
        (true, _) => Colour::Red,
        (false, true) => Colour::Green,
        (false, false) => Colour::Yellow,
    };
    text.push_str(&format!("state       {}\n", output::paint(&state, colour)));
    let last = view.last_token.filter(|token| token.0 > 0);
    text.push_str(&format!("last token  {}\n", view::token(last)));
    text.push_str(&parties("HOLDER", "HELD", &view.holders));
    text.push_str(&parties("WAITER", "WAITED", &view.waiters));
    text
}

fn parties(who: &str, age: &str, parties: &[PartyView]) -> String {
    if parties.is_empty() {
        return String::new();
    }
    let mut table = output::table(&[who, "MODE", "TOKEN", age, "LEFT", "CLAIM", "PROGRAM", "DOING"]);
    for party in parties {
        table.add_row([
            view::process(party),
            party.mode.to_string(),
            view::token(party.token),
            human(party.age),
            view::left(party.left),
            view::claim(party.claim),
            clean(&party.holder.program).into_owned(),
            clean(&party.holder.text).into_owned(),
        ]);
    }
    format!("\n{}", output::with_bold_head(&output::table_text(&table)))
}

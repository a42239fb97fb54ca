//! `leasehold ls` and `leasehold show`.

use leasehold::LockName;
use leasehold::engine::{ContenderView, LockView};

use crate::args::{LsArgs, ShowArgs};
use crate::duration::format_duration;
use crate::exit::{self, Failure};
use crate::output::{self, Colour, escape_control_chars};
use crate::view::{self, LockJson};

/// Prints all locks that are held or waited for, one row each; returns the exit code.
pub(crate) async fn list_locks(args: LsArgs) -> Result<u8, Failure> {
    let (views, url) = args.engine.query(async |locks| locks.list(&args.prefix).await).await?;
    let text = if args.output.json {
        output::to_json_line(&views.iter().map(|view| LockJson::new(view, &url)).collect::<Vec<_>>())
    } else {
        format_list(&views, &url)
    };
    output::write_stdout(&text)?;
    Ok(report_damage(&views, &url))
}

/// Prints a message for each damaged lock; returns the exit code, 0 if there is none.
fn report_damage(views: &[LockView], url: &str) -> u8 {
    let mut code = 0;
    for view in views {
        if let Some(damage) = &view.damage {
            output::print_message(&format!("{url}: lock {}: {damage}", escape_control_chars(view.name.as_str())));
            code = exit::UNAVAILABLE;
        }
    }
    code
}

/// The table of `leasehold ls`, with the number of locks below it.
fn format_list(views: &[LockView], url: &str) -> String {
    if views.is_empty() {
        return format!("no locks held or awaited on {url}\n");
    }
    let mut table = output::new_table(&["NAME", "MODE", "HOLDER", "TOKEN", "HELD", "LEFT", "WAITING", "DOING"]);
    for view in views {
        let name = escape_control_chars(view.name.as_str()).into_owned();
        let Some(first) = view.holders.first() else {
            let waiting = view.waiters.len().to_string();
            let state = if view.damage.is_some() { "damaged" } else { "none" };
            table.add_row([name, "-".into(), state.into(), "-".into(), "-".into(), "-".into(), waiting]);
            continue;
        };
        let others = view.holders.len() - 1;
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        table.add_row([
            name,
            first.mode.to_string(),
            format!("{}{more}", view::format_process(first)),
            view::format_token(first.token),
            format_duration(first.age),
            view::format_remaining(first.remaining),
            format_waiting(&view.waiters),
            view::format_activity(first),
        ]);
    }
    let locks = output::format_count(views.len(), "lock");
    format!("{}\n{locks} on {url}\n", output::with_bold_header(&output::format_table(&table)))
}

/// The number of waiters, and how long the first has waited; a dash if there are none.
fn format_waiting(waiters: &[ContenderView]) -> String {
    match waiters.iter().map(|waiter| waiter.age).max() {
        None => "-".to_owned(),
        Some(oldest) => format!("{} ({})", waiters.len(), format_duration(oldest)),
    }
}

/// Prints the state, holders and waiters of one lock; returns the exit code.
pub(crate) async fn show_lock(args: ShowArgs) -> Result<u8, Failure> {
    let name = LockName::new(&args.name)?;
    let (view, url) = args.engine.query(async |locks| locks.inspect(&name).await).await?;
    let text =
        if args.output.json { output::to_json_line(&LockJson::new(&view, &url)) } else { format_lock(&view, &url) };
    output::write_stdout(&text)?;
    Ok(report_damage(std::slice::from_ref(&view), &url))
}

/// The output of `leasehold show` for people.
fn format_lock(view: &LockView, url: &str) -> String {
    let mut text = format!("lock        {}\nengine      {url}\n", escape_control_chars(view.name.as_str()));
    let state = match (view.holders.as_slice(), view.waiters.is_empty()) {
        _ if view.damage.is_some() => "damaged".to_owned(),
        ([], _) if view.cool_down.is_some() => {
            format!("not granted: {}", view::format_cool_down(view.cool_down.unwrap_or_default()))
        }
        ([], true) => "free".to_owned(),
        ([], false) => "about to be granted".to_owned(),
        ([only], _) => format!("held ({})", only.mode),
        ([first, ..], _) => format!("held by {} ({} each)", view.holders.len(), first.mode),
    };
    let colour = match (view.damage.is_some(), view.holders.is_empty() && view.cool_down.is_none()) {
        (true, _) => Colour::Red,
        (false, true) => Colour::Green,
        (false, false) => Colour::Yellow,
    };
    text.push_str(&format!("state       {}\n", output::paint(&state, colour)));
    let last = view.last_token.filter(|token| token.0 > 0);
    text.push_str(&format!("last token  {}\n", view::format_token(last)));
    text.push_str(&format_contenders("HOLDER", "HELD", &view.holders));
    text.push_str(&format_contenders("WAITER", "WAITED", &view.waiters));
    text
}

/// A table of holders or waiters, below an empty line; empty without any. `title` and `age_title`
/// are the headers of the columns with the process and with its age.
fn format_contenders(title: &str, age_title: &str, contenders: &[ContenderView]) -> String {
    if contenders.is_empty() {
        return String::new();
    }
    let mut table = output::new_table(&[title, "MODE", "TOKEN", age_title, "LEFT", "CLAIM", "PROGRAM", "DOING"]);
    for contender in contenders {
        table.add_row([
            view::format_process(contender),
            contender.mode.to_string(),
            view::format_token(contender.token),
            format_duration(contender.age),
            view::format_remaining(contender.remaining),
            view::format_claim_id(contender.claim),
            escape_control_chars(&contender.holder.program).into_owned(),
            escape_control_chars(&contender.holder.description).into_owned(),
        ]);
    }
    format!("\n{}", output::with_bold_header(&output::format_table(&table)))
}

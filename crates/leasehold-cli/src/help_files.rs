//! Completion scripts and the manual page, generated from the command line's own help.

use std::io;
use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use leasehold_command::verify_options;

use crate::args::Cli;
use crate::exit::{self, Failure};
use crate::output;

/// Prints the completion script for a shell; returns the exit code.
pub(crate) fn print_completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_verify_options(Cli::command()), "leasehold", &mut script);
    output::write_stdout(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Adds the options of `leasehold-verify`, which is a separate program: without them a shell would
/// complete file names.
fn with_verify_options(cli: Command) -> Command {
    let option = |name: &'static str, values: &'static [&'static str]| {
        Arg::new(name).long(name).value_parser(PossibleValuesParser::new(values)).num_args(1)
    };
    let options = [
        option("workload", &verify_options::WORKLOADS),
        option("faults", &verify_options::FAULTS),
        option("local", &verify_options::ENGINES),
    ];
    cli.mut_subcommand("verify", |command| command.args(options))
}

/// Prints the manual as one page, or writes one page per command into `dir`. Returns the exit code.
pub(crate) fn write_man(dir: Option<&Path>) -> Result<u8, Failure> {
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    match dir {
        None => output::write_stdout(
            &render_whole_page(&cli).map_err(|error| Failure::system("cannot create the manual page", error))?,
        )?,
        Some(dir) => write_pages(dir, &cli).map_err(|error| {
            Failure::new(exit::OUTPUT, "output", format!("cannot write to {}: {error}", dir.display()))
        })?,
    }
    Ok(0)
}

/// Writes one page per command into `dir`, which is created if it is missing.
fn write_pages(dir: &Path, cli: &Command) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    write_page(dir, "leasehold", cli)
}

/// Writes the page of a command and, recursively, of its subcommands.
fn write_page(dir: &Path, name: &str, command: &Command) -> io::Result<()> {
    std::fs::write(dir.join(format!("{name}.1")), render_page(command)?)?;
    visible_subcommands(command).try_for_each(|inner| write_page(dir, &format!("{name}-{}", inner.get_name()), inner))
}

/// The subcommands that the help lists, except `help` itself.
fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// The page of one command, without its subcommands.
fn render_page(command: &Command) -> io::Result<String> {
    let mut page = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    Ok(String::from_utf8_lossy(&page).into_owned() + &render_after_help(command, ".SH"))
}

/// The main page, with each command as a section.
fn render_whole_page(cli: &Command) -> io::Result<String> {
    let mut page = Vec::new();
    let main = Man::new(cli.clone());
    main.render_title(&mut page)?;
    main.render_name_section(&mut page)?;
    main.render_synopsis_section(&mut page)?;
    main.render_description_section(&mut page)?;
    main.render_options_section(&mut page)?;
    for command in visible_subcommands(cli) {
        page.extend_from_slice(render_section(command)?.as_bytes());
        for inner in visible_subcommands(command) {
            page.extend_from_slice(render_section(inner)?.as_bytes());
        }
    }
    let mut page = String::from_utf8_lossy(&page).into_owned();
    page.push_str(&render_after_help(cli, ".SH"));
    Ok(page)
}

/// The page of one command as a section of the main page, with its own sections one level lower.
fn render_section(command: &Command) -> io::Result<String> {
    let mut page = Vec::new();
    let man = Man::new(command.clone());
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let title = command.get_bin_name().unwrap_or(command.get_name()).to_uppercase();
    // Drops definitions before the first section: the main page has them already.
    let page = String::from_utf8_lossy(&page);
    let lines = page.lines().map(|line| line.strip_prefix(".SH").map_or(line.to_owned(), |rest| format!(".SS{rest}")));
    let page: String = lines.map(|line| line + "\n").collect();
    Ok(format!(".SH \"{title}\"\n{page}{}", render_after_help(command, ".SS")))
}

/// The help text after the options, with its lines unchanged. Each `Title:` at the margin begins a
/// section; `heading` is the macro for its title, `.SH` or `.SS`.
fn render_after_help(command: &Command, heading: &str) -> String {
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut page = String::new();
    for line in text.lines() {
        let safe = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        match line.strip_suffix(':') {
            Some(title) if !line.starts_with(' ') => {
                page.push_str(&format!("{heading} \"{}\"\n.nf\n", title.to_uppercase()));
            }
            _ if line.is_empty() => page.push_str(".fi\n"),
            _ => page.push_str(&format!("{safe}\n")),
        }
    }
    if !page.is_empty() {
        page.push_str(".fi\n");
    }
    page
}

//! The commands that control jobs: pause, resume, run now, reset, forget.

use leasehold::DEFAULT_TTL;
use leasehold::schedule::Jobs;

use super::args::ControlArgs;
use crate::exit::Failure;
use crate::output::{self, clean};

/// The requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Pause,
    Resume,
    RunNow,
    Reset,
    Forget,
}

/// Applies the operation to each job.
pub(super) async fn control(what: What, args: ControlArgs) -> Result<u8, Failure> {
    let locks = args.engine.open(DEFAULT_TTL).await?;
    let jobs = Jobs::of(&locks)?;
    let mut code = 0;
    for job in &args.jobs {
        match ask(&jobs, what, job).await {
            Ok(said) => output::out(&format!("{}: {said}\n", clean(job)))?,
            // A failure of one job does not keep the others from being handled.
            Err(error) => {
                let failure = Failure::from(error);
                output::say(&failure.message);
                code = failure.code;
            }
        }
    }
    locks.close().await?;
    Ok(code)
}

async fn ask(jobs: &Jobs, what: What, job: &str) -> leasehold::Result<&'static str> {
    Ok(match what {
        What::Pause if jobs.pause(job).await? => "paused",
        What::Pause => "was paused already",
        What::Resume if jobs.resume(job).await? => "goes on with its next tick",
        What::Resume => "was not paused",
        What::RunNow => {
            jobs.run_now(job).await?;
            "runs within ten seconds, if a host is there to run it"
        }
        What::Reset => {
            jobs.reset(job).await?;
            "begins anew"
        }
        What::Forget if jobs.forget(job).await? => "is forgotten",
        What::Forget => "was not known",
    })
}

//! Flawed wrappers of a real engine, which show that the comparison detects what it should.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, ForceReleaseOutcome, LockView, LossEvents, RecordStore,
    ReleaseReply, RenewReply, Step,
};
use leasehold::{Claim, ClaimId, Error, LockName, Token};

/// What a [`FlawedEngine`] does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Every second grant repeats the token of the one before.
    RepeatsTokens,
    /// When the lock becomes free, the first waiter moves to the end of the queue.
    IgnoresOrder,
    /// A release reports success without releasing.
    IgnoresReleases,
}

/// A real engine with a flaw.
#[derive(Debug)]
pub struct FlawedEngine {
    inner: Arc<dyn Engine>,
    flaw: Flaw,
    claims: Mutex<HashMap<ClaimId, Arc<Claim>>>,
    tokens: Mutex<HashMap<LockName, Vec<Token>>>,
}

impl FlawedEngine {
    /// Wraps an engine with a flaw.
    pub fn wrap(inner: Arc<dyn Engine>, flaw: Flaw) -> Arc<dyn Engine> {
        Arc::new(Self { inner, flaw, claims: Mutex::default(), tokens: Mutex::default() })
    }

    fn inner(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.inner)
    }

    /// The token reported instead of the real one: the first two tokens of a lock become one, and
    /// so on.
    fn altered_token(&self, name: &LockName, real: Token) -> Token {
        if self.flaw != Flaw::RepeatsTokens {
            return real;
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tokens.entry(name.clone()).or_default();
        let place = known.iter().position(|token| *token == real).unwrap_or_else(|| {
            known.push(real);
            known.len() - 1
        });
        Token(place as u64 / 2 + 1)
    }

    fn altered_answer(&self, name: &LockName, mut answer: AcquireReply) -> AcquireReply {
        if let AcquireReply::Granted(grant) = &mut answer {
            grant.token = self.altered_token(name, grant.token);
        }
        answer
    }

    fn altered_view(&self, mut view: LockView) -> LockView {
        for holder in &mut view.holders {
            holder.token = holder.token.map(|token| self.altered_token(&view.name, token));
        }
        view
    }

    /// Releases after moving the first waiter to the end of the queue.
    async fn release_out_of_order(&self, claim: Arc<Claim>) -> Result<ReleaseReply, Error> {
        let view = self.inner().inspect(claim.name().clone()).await?;
        let seen = |id| self.claims.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        let first = if view.waiters.len() > 1 { seen(view.waiters[0].claim) } else { None };
        let Some(first) = first.filter(|first| first.id != claim.id) else { return self.inner().release(claim).await };
        self.inner().release(Arc::clone(&first)).await?;
        let released = self.inner().release(claim).await?;
        self.inner().attempt(first, true).await?;
        Ok(released)
    }
}

impl Engine for FlawedEngine {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn url(&self) -> String {
        self.inner.url()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).insert(claim.id, Arc::clone(&claim));
        let name = claim.name().clone();
        Step::new(async move { Ok(self.altered_answer(&name, self.inner().attempt(claim, queue).await?)) })
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        let name = claim.name().clone();
        Step::new(async move { Ok(self.altered_answer(&name, self.inner().wait(claim, timeout).await?)) })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        self.inner().renew(claims)
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        match self.flaw {
            Flaw::RepeatsTokens => self.inner().release(claim),
            Flaw::IgnoresOrder => Step::new(async move { self.release_out_of_order(claim).await }),
            Flaw::IgnoresReleases => Step::new(async move {
                let released = self.inner().release(Arc::clone(&claim)).await?;
                if released == ReleaseReply::Released {
                    self.inner().attempt(claim, true).await?;
                }
                Ok(released)
            }),
        }
    }

    fn loss_events(&self) -> LossEvents {
        self.inner().loss_events()
    }

    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        self.inner().watch(name, timeout)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move { Ok(self.altered_view(self.inner().inspect(name).await?)) })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        self.inner().list(prefix)
    }

    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        self.inner().force_release(name, claim, reason)
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        self.inner().request_release(name, claim, reason)
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        self.inner().shutdown()
    }

    fn liveness_fd(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.liveness_fd()
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        self.inner().records()
    }
}

-- One lock on one node is one string: a `node_lock`, whose `votes` are one `vote` after another.
-- `ended_token` is the highest token of the claims that have ended. `released_token` is the highest
-- that was released, and `released_by` the last claim that released it.

-- For how long the key of a lock is kept after its last claim has ended.
local RETENTION = ARGV[1]

-- Reads a lock for a claim. Returns a table:
--   highest      the highest token of all claims
--   mine         the vote for this claim; nil: there is none
--   owner_token  the highest token of the same owner's other claims
--   busy_until   when the last claim of another owner expires; nil: there is none
--   others_end   when the last of the other claims expires
--   lock         the `node_lock`, with the votes for the other claims
local function view_for(key, text, id, owner)
  local lock = { ended_token = 0, released_token = 0, released_by = NONE, votes = '' }
  local view = { highest = 0, owner_token = 0, others_end = 0, lock = lock }
  if not text then return view end
  lock = read_node_lock(text) or refuse(text)
  view.lock, view.highest = lock, lock.ended_token
  local votes, at, from, others, has_ended, was_ahead = lock.votes, 1, 1, {}, false, false
  while at <= #votes do
    local vote, next = read_vote(votes, at)
    local wants = read_contender(vote.contender)
    -- The clock was set back: a time in the future counts as now.
    if vote.since > now then
      vote.since, was_ahead = now, true
      votes = sub(votes, 1, at - 1) .. write_vote(vote) .. sub(votes, next)
    end
    local ends = vote.since + wants.ttl
    view.highest = math.max(view.highest, vote.token)
    if vote.claim == id or ends <= now then
      -- Keeps the ranges between the removed votes: an owner may have hundreds, and to join them
      -- one by one is slow.
      others[#others + 1], from = sub(votes, from, at - 1), next
      if ends <= now then has_ended = true else view.mine = vote end
    else
      view.others_end = math.max(view.others_end, ends)
      if owner ~= NONE and wants.owner == owner then
        view.owner_token = math.max(view.owner_token, vote.token)
      else
        view.busy_until = math.max(view.busy_until or 0, ends)
      end
    end
    at = next
  end
  others[#others + 1] = sub(votes, from)
  lock.votes = table.concat(others)
  if has_ended then lock.ended_token = view.highest end
  if has_ended or was_ahead then
    call('SET', key, write_node_lock(lock) .. (view.mine and write_vote(view.mine) or ''), 'KEEPTTL')
  end
  return view
end

-- Stores a vote beside those for the other claims. The key is kept until this server's clock has
-- passed its tokens, and for the retention after the last claim's end. After that the next token
-- comes from the clock.
local function store(key, view, vote)
  local ends = math.max(now, view.highest, vote.token) + read_contender(vote.contender).ttl
  local keep = math.ceil((math.max(ends, view.others_end) - now) / 1000000) + RETENTION
  vote.since = now
  call('SET', key, write_node_lock(view.lock) .. write_vote(vote), 'EX', keep)
end

// One request while it runs: its state, sampler, text and progress. Owned and used by the scheduler's thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/prompt.h"
#include "engine/request_ticket.h"
#include "engine/sampler.h"
#include "engine/session_state.h"
#include "engine/text_stream.h"

namespace heirloom::engine {

using Clock = std::chrono::steady_clock;

inline double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// A request as submit has checked and prepared it.
struct Job {
  Prompt prompt;
  SamplingParams sampling;
  std::int64_t max_tokens = 0;       // >= 1, with the prompt within the context; 0 for embed_only
  bool ignore_eos = false;
  int top_logprobs = -1;
  bool embed_only = false;
  std::shared_ptr<TokenConstraint> constraint;
  std::optional<TextStream> text;    // absent for embed_only
  std::function<void(const TokenEvent&)> on_token;
  std::function<void(const RequestResult&)> on_done;
  double image_ms = 0;               // decoding and resizing, before the queue
  Clock::time_point submitted = Clock::now();
};

/// Features of the pictures that the rows of a prompt need, as they get ready.
struct EncodedUnit {
  ops::Buffer features;  // [tokens, hidden_size]
  std::int64_t tokens = 0;
};

struct Sequence {
  Sequence(std::shared_ptr<RequestTicket> ticket_, Job job_, int vocab_size)
      : ticket(std::move(ticket_)),
        job(std::move(job_)),
        sampler(job.sampling, job.prompt.token_ids, vocab_size) {}

  std::shared_ptr<RequestTicket> ticket;
  Job job;
  Sampler sampler;
  std::optional<SessionState> state;       // absent while waiting and while `from` is being loaded
  PrefixCache::Start from;
  RequestResult result;
  std::vector<Symbol> symbols;             // of the prompt and the answer
  std::vector<PlannedSnapshot> planned;    // not yet taken, ascending
  std::size_t next_planned = 0;
  std::vector<std::shared_ptr<const EncodedUnit>> features;  // per picture span of the prompt; null until needed
  std::vector<double> hidden_sum;          // embed_only: [hidden_size]
  std::vector<std::uint32_t> allowed;      // constraint mask, [ceil(vocab / 32)]
  Clock::time_point started, decode_started;
  int failed_steps = 0;                    // with others; see Scheduler::recover
  std::int64_t replay_end = 0;             // up to here tokens are fed again and none is chosen
  std::int64_t suspect_end = 0;            // up to here it runs alone
  bool done = false;

  bool loading() const { return !state.has_value(); }
  /// Where feeding known tokens ends and choosing begins.
  std::int64_t known_end() const { return std::max(job.prompt.size(), replay_end); }
  bool prefilling() const { return state->position() < known_end(); }
  bool suspect() const { return !done && !loading() && state->position() < suspect_end; }
  bool decoding() const { return !done && !loading() && !prefilling(); }
};

}  // namespace heirloom::engine

#include "engine/scheduler.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_slice.h"
#include "engine/fixed_steps.h"

namespace heirloom::engine {
namespace {

constexpr std::chrono::milliseconds kCancelLatency{20};
constexpr std::chrono::milliseconds kIdleBefore{3};  // making memory ready
constexpr int kMaxFailedSteps = 3;  // shared ones; a request that was in more of them fails

/// What is being handled in a catch block.
Error current_error() {
  try {
    throw;
  } catch (const Error& known) {
    return known;
  } catch (const std::bad_alloc&) {
    return {ErrorKind::does_not_fit, "out of memory while running the request"};
  } catch (const std::exception& other) {
    return {ErrorKind::internal, other.what()};
  } catch (...) {
    return {ErrorKind::internal, "unknown exception"};
  }
}

}  // namespace

Scheduler::Scheduler(model::Model& model, StatePool& pool, PrefixCache& cache, Options options)
    : model_(model),
      pool_(pool),
      cache_(cache),
      options_(std::move(options)),
      budget_(options_.largest_chunk),
      features_(options_.feature_bytes) {
  HEIRLOOM_CHECK(options_.slots > 0 && std::has_single_bit(static_cast<std::uint64_t>(options_.largest_chunk)));
  if (!options_.doorbell) options_.doorbell = std::make_shared<Doorbell>();
  argmax_ids_ = model_.backend().make_buffer(static_cast<std::size_t>(options_.slots) * sizeof(std::int32_t));
  published_.slots_total = counters_.slots_total = options_.slots;
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  options_.doorbell->ring();
  thread_.join();
}

std::shared_ptr<RequestHandle> Scheduler::submit(Job job) {
  auto ticket = std::make_shared<RequestTicket>();
  auto sequence = std::make_unique<Sequence>(ticket, std::move(job), model_.config().text.vocab_size);
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) heirloom::fail(ErrorKind::cancelled, "the engine is shutting down");
    inbox_.push_back(std::move(sequence));
  }
  options_.doorbell->ring();
  return ticket;
}

EngineMetrics Scheduler::metrics() const {
  const std::scoped_lock lock(mutex_);
  EngineMetrics metrics = published_;
  metrics.queued += static_cast<int>(inbox_.size());
  return metrics;
}

bool Scheduler::is_end(std::int32_t id) const { return std::ranges::find(options_.end_tokens, id) != options_.end_tokens.end(); }

void Scheduler::run() {
  // Whoever is woken by a token, here or in a client, goes before the next step: with the default slice (1.4 ms on two cores) one
  // wake-up in seven found this thread at its slice's end, lost, and waited for the next tick.
  ask_slice(kComputeSlice);
  for (;;) {
    {
      const std::scoped_lock lock(mutex_);
      if (stopping_) break;
    }
    take_inbox();
    reap_cancelled();
    poll_loads();
    admit();
    const bool idle = std::ranges::all_of(active_, &Sequence::loading);
    if (!idle) step();
    cache_.poll(idle);
    std::erase_if(active_, [](const SequencePtr& sequence) { return sequence->done; });
    publish_metrics();
    if (!idle) continue;
    if (active_.empty() && waiting_.empty()) {
      wait_idle();
    } else {
      options_.doorbell->wait_for(kCancelLatency);  // loads ring, cancellations do not
    }
  }
  take_inbox();
  for (auto& sequence : active_) finish(*sequence, FinishReason::cancelled);
  for (auto& sequence : waiting_) finish(*sequence, FinishReason::cancelled);
  active_.clear();
  waiting_.clear();
  cache_.poll(true);
  publish_metrics();
}

/// Until the doorbell rings; meanwhile memory for the next requests is made ready, a slab at a time.
void Scheduler::wait_idle() {
  for (auto pause = kIdleBefore; !options_.doorbell->wait_for(pause); pause = {}) {
    bool more = false;
    try {
      more = pool_.make_ready(options_.ready_bytes, options_.most_ready_bytes);
    } catch (const Error&) {
      // What a request needs it asks for itself, and says so if there is none.
    }
    if (!more) return options_.doorbell->wait();
  }
}

void Scheduler::take_inbox() {
  const std::scoped_lock lock(mutex_);
  counters_.requests_total += inbox_.size();
  for (auto& sequence : inbox_) waiting_.push_back(std::move(sequence));
  inbox_.clear();
}

void Scheduler::reap_cancelled() {
  const auto reap = [&](auto& sequences) {
    for (const SequencePtr& sequence : sequences) {
      if (!sequence->done && sequence->ticket->cancel_requested()) finish(*sequence, FinishReason::cancelled);
    }
    std::erase_if(sequences, [](const SequencePtr& sequence) { return sequence->done; });
  };
  reap(waiting_);
  reap(active_);
}

void Scheduler::admit() {
  while (!waiting_.empty() && active_.size() < static_cast<std::size_t>(options_.slots)) {
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Sequence& sequence = *active_.back();
    guarded(sequence, [&] { start(sequence); });
    if (sequence.done) active_.pop_back();
  }
}

/// Runs work for one sequence; whatever it throws fails that sequence alone.
template <typename Work>
bool Scheduler::guarded(Sequence& sequence, Work&& work) {
  try {
    work();
    return true;
  } catch (...) {
    fail(sequence, current_error());
    return false;
  }
}

void Scheduler::start(Sequence& sequence) {
  const Prompt& prompt = sequence.job.prompt;
  sequence.started = Clock::now();
  sequence.result.timings.queue_ms = milliseconds(sequence.job.submitted, sequence.started);
  sequence.result.timings.image_ms = sequence.job.image_ms;
  sequence.result.prompt_tokens = prompt.size();
  sequence.symbols = prompt.symbols;
  sequence.features.resize(prompt.images.size());
  restart(sequence);
}

/// From the deepest snapshot of its prompt, or from nothing.
void Scheduler::restart(Sequence& sequence) {
  sequence.state.reset();
  if (sequence.job.embed_only) {
    // The mean needs the hidden state of every token, which snapshots do not keep.
    sequence.hidden_sum.assign(static_cast<std::size_t>(model_.config().text.hidden_size), 0.0);
  } else {
    sequence.from = cache_.start(sequence.job.prompt);
  }
  if (!sequence.from.loading) begin(sequence);
}

void Scheduler::poll_loads() {
  for (const auto& sequence : active_) {
    if (sequence->done || !sequence->loading() || !sequence->from.loading->done) continue;
    guarded(*sequence, [&] {
      sequence->from = cache_.again_after_load(sequence->job.prompt, sequence->from);
      if (!sequence->from.loading) begin(*sequence);
    });
  }
  std::erase_if(active_, [](const SequencePtr& sequence) { return sequence->done; });
}

void Scheduler::begin(Sequence& sequence) {
  const PrefixCache::Start from = std::exchange(sequence.from, {});
  const bool answering = !sequence.result.token_ids.empty();  // and started again after a failed step
  sequence.planned.clear();
  sequence.next_planned = 0;
  if (!sequence.job.embed_only && !answering) sequence.planned = cache_.plan(sequence.job.prompt, from);
  if (from.snapshot) {
    sequence.state.emplace(pool_, *from.snapshot);
    if (sequence.failed_steps == 0) sequence.result.cached_tokens = from.snapshot->position;
  } else {
    sequence.state.emplace(pool_);
  }
  // An exact repeat computes nothing.
  if (!sequence.prefilling() && !answering) choose_token(sequence, from.snapshot->logits, -1);
}

void Scheduler::step() {
  const auto begin = Clock::now();
  std::vector<Part> parts = compose();
  if (parts.empty()) return;
  model::StepInput input = make_input(parts);
  if (parts.empty()) return;
  std::int64_t decoding = 0, prefill = 0;
  for (const Part& part : parts) (part.decoding ? decoding : prefill) += part.rows;
  const bool streams_waited = decoding == 0 && std::ranges::any_of(active_, [](const auto& s) { return s->decoding(); });
  const bool recovering = parts.front().sequence->suspect();
  try {
    const model::StepOutput output = model_.forward(input);
    after_forward(parts, output);
  } catch (...) {
    recover(parts, current_error());
    return;
  }
  const double ms = milliseconds(begin, Clock::now());
  if (!recovering) budget_.note(decoding, prefill, ms, streams_waited);  // later prompts do not pay for a replay
}

/// After a step that threw. The states of its sequences are in doubt, and which of them is at fault is not known: each is
/// computed again up to where it stood and then runs its part of the step alone, where only the one at fault throws again.
/// After a device error nothing on the device can be trusted, so all of them fail.
///
/// What was sent stays. With fixed steps an answer is replayed in the steps that it took (chunk_end), so to the same bits
/// if its prompt starts from the same snapshot or from a later one of its own (as far as decoding gives the same alone). If
/// that has been evicted the answer goes on from a state of the same tokens that differs by rounding; its history follows
/// from the steps it took now, so the cache knows.
void Scheduler::recover(const std::vector<Part>& parts, const Error& error) {
  bool again = false;
  for (const Part& part : parts) {
    Sequence& sequence = *part.sequence;
    if (sequence.done) continue;
    if (parts.size() == 1 || error.kind() == ErrorKind::device || ++sequence.failed_steps > kMaxFailedSteps) {
      fail(sequence, error);
      continue;
    }
    again = true;
    sequence.suspect_end = sequence.state->position() + part.rows;
    sequence.replay_end = sequence.result.token_ids.empty() ? 0 : sequence.state->position();
    guarded(sequence, [&] { restart(sequence); });
  }
  if (again) {
    log::warning("a step of {} requests failed: {}; they run one by one to find the one at fault", parts.size(), error.what());
  }
}

/// Decoding sequences with one row each, then chunks of prefilling ones, who take turns at going first. With fixed steps
/// either the former or one chunk. After a failed step one suspect alone.
std::vector<Scheduler::Part> Scheduler::compose() {
  std::vector<Part> parts;
  std::vector<Sequence*> prefilling;
  const auto alone = std::ranges::find_if(active_, &Sequence::suspect);
  for (const auto& sequence : active_) {
    if (alone != active_.end() && sequence != *alone) continue;
    if (sequence->decoding()) parts.push_back({sequence.get(), 0, 1, true, {}, -1});
    if (!sequence->done && !sequence->loading() && sequence->prefilling()) prefilling.push_back(sequence.get());
  }
  if (prefilling.empty()) return parts;
  const bool beside_decoding = !parts.empty();
  if (cache_.fixed_step() > 0) {
    if (beside_decoding && budget_.decode_is_due()) return parts;
    Sequence& sequence = *prefilling[rotation_++ % prefilling.size()];
    const std::int64_t position = sequence.state->position(), end = chunk_end(sequence, options_.largest_chunk);
    std::int64_t reached = 0;  // less than `end`: a picture on the way took this turn
    if (guarded(sequence, [&] { reached = encode_needed(sequence, end, beside_decoding); }) && reached == end) {
      parts = {{&sequence, 0, static_cast<std::int32_t>(end - position), false, {}, -1}};
    }
    return parts;
  }
  std::int64_t nearly_done = 0;
  for (const Sequence* sequence : prefilling) {
    const std::int64_t left = sequence->known_end() - sequence->state->position();
    if (left <= options_.largest_chunk) nearly_done += left;
  }
  std::int64_t budget = budget_.prefill_tokens(static_cast<std::int64_t>(parts.size()), nearly_done);
  const std::size_t first = rotation_++ % prefilling.size();
  for (std::size_t i = 0; i < prefilling.size() && budget > 0; ++i) {
    Sequence& sequence = *prefilling[(first + i) % prefilling.size()];
    const std::int64_t position = sequence.state->position();
    std::int64_t end = chunk_end(sequence, budget);
    if (!guarded(sequence, [&] { end = encode_needed(sequence, end, beside_decoding); })) continue;
    if (end <= position) {
      if (beside_decoding) break;  // a picture was encoded: let the running streams have their step
      continue;
    }
    parts.push_back({&sequence, 0, static_cast<std::int32_t>(end - position), false, {}, -1});
    budget -= end - position;
  }
  return parts;
}

std::int64_t Scheduler::chunk_end(const Sequence& sequence, std::int64_t budget) const {
  const std::int64_t position = sequence.state->position();
  const bool fixed = cache_.fixed_step() > 0;
  if (fixed && position >= sequence.job.prompt.size()) return position + 1;  // a replayed answer, as it was decoded
  const auto size = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(budget)));
  std::int64_t end = fixed ? fixed_end_above(position, cache_.fixed_step()) : (position / size + 1) * size;
  end = std::min(end, fixed ? sequence.job.prompt.size() : sequence.known_end());
  if (!captures() && sequence.next_planned < sequence.planned.size()) {
    end = std::min(end, sequence.planned[sequence.next_planned].position);
  }
  return end;
}

/// Encodes the pictures that tokens up to `end` need, at most one if `one_only`. Returns how far the prompt can go.
std::int64_t Scheduler::encode_needed(Sequence& sequence, std::int64_t end, bool one_only) {
  const std::int64_t position = sequence.state->position();
  bool encoded = false;
  for (std::size_t i = 0; i < sequence.job.prompt.images.size(); ++i) {
    const ImageSpan& span = sequence.job.prompt.images[i];
    if (sequence.features[i] || span.first_token + span.count <= position || span.first_token >= end) continue;
    sequence.features[i] = features_.find(span.unit->content_hash);
    if (sequence.features[i]) continue;
    if ((encoded && one_only) || sequence.ticket->cancel_requested()) return std::max(position, span.first_token);
    const auto begin = Clock::now();
    model::VisionOutput output = model_.encode_image(span.unit->make_input());
    auto unit = std::make_shared<EncodedUnit>();
    unit->tokens = output.tokens;
    unit->features = std::move(output.features);
    if (unit->tokens < span.first_feature + span.count) {
      heirloom::fail(ErrorKind::internal, "the vision tower gave {} features where the prompt has {} places", unit->tokens,
                     span.first_feature + span.count);
    }
    features_.insert(span.unit->content_hash, unit);
    sequence.features[i] = std::move(unit);
    sequence.result.timings.image_ms += milliseconds(begin, Clock::now());
    encoded = true;
    // Beside running streams the picture was this step's share of work.
    if (one_only) return std::max(position, std::min(end, span.first_token));
  }
  return end;
}

/// Fills the step. Parts whose state cannot grow (out of memory) fail and leave `parts`.
model::StepInput Scheduler::make_input(std::vector<Part>& parts) {
  model::StepInput input;
  input.plan.shape = pool_.shape();
  std::int32_t rows = 0;
  std::erase_if(parts, [&](Part& part) {
    Sequence& sequence = *part.sequence;
    const std::int64_t position = sequence.state->position();
    const std::int64_t end = position + part.rows;
    std::vector<std::int64_t> capture_at;
    if (!part.decoding && captures()) {
      for (std::size_t i = sequence.next_planned; i < sequence.planned.size(); ++i) {
        const PlannedSnapshot& planned = sequence.planned[i];
        if (planned.position >= end) break;
        const std::span<const Symbol> prefix = std::span(sequence.symbols).first(static_cast<std::size_t>(planned.position));
        if (!cache_.wants(prefix, false)) continue;
        part.captures.push_back(planned);
        capture_at.push_back(planned.position);
      }
    }
    part.first_row = rows;
    if (cache_.fixed_step() > 0) note_history(sequence, part);
    const bool ok = guarded(sequence, [&] {
      input.plan.sequences.push_back(sequence.state->step(rows, part.rows, capture_at));
    });
    if (ok) rows += part.rows;
    return !ok;
  });
  input.plan.num_rows = rows;
  input.token_ids.reserve(static_cast<std::size_t>(rows));
  input.positions.resize(3 * static_cast<std::size_t>(rows));
  for (Part& part : parts) {
    Sequence& sequence = *part.sequence;
    const Prompt& prompt = sequence.job.prompt;
    const std::int64_t position = sequence.state->position();
    for (std::int64_t p = position; p < position + part.rows; ++p) {
      const auto row = input.token_ids.size();
      const std::int64_t generated = p - prompt.size();
      input.token_ids.push_back(generated < 0 ? prompt.token_ids[static_cast<std::size_t>(p)]
                                              : sequence.result.token_ids[static_cast<std::size_t>(generated)]);
      for (std::size_t axis = 0; axis < 3; ++axis) {
        input.positions[axis * static_cast<std::size_t>(rows) + row] =
            generated < 0 ? prompt.positions[axis * prompt.token_ids.size() + static_cast<std::size_t>(p)]
                          : prompt.next_position + static_cast<std::int32_t>(generated);
      }
    }
    for (std::size_t i = 0; i < prompt.images.size(); ++i) {
      const ImageSpan& span = prompt.images[i];
      const std::int64_t first = std::max(span.first_token, position);
      const std::int64_t last = std::min(span.first_token + span.count, position + part.rows);
      if (first >= last) continue;
      const std::int64_t feature = span.first_feature + first - span.first_token;
      input.features.push_back({part.first_row + static_cast<std::int32_t>(first - position),
                                static_cast<std::int32_t>(last - first),
                                sequence.features[i]->features.f32() + feature * model_.config().text.hidden_size});
    }
    if (sequence.job.embed_only) {
      input.want_hidden = true;
    } else if (position + part.rows >= prompt.size() && position + part.rows > sequence.replay_end) {
      part.logits_row = static_cast<std::int64_t>(input.logits_rows.size());
      input.logits_rows.push_back(part.first_row + part.rows - 1);
    }
  }
  return input;
}

/// Steps other than those of a run from the beginning leave other bits: a prompt's last step if it ends early, the first one
/// after it, decoding (also when it is replayed).
void Scheduler::note_history(Sequence& sequence, const Part& part) const {
  const std::int64_t from = sequence.state->position(), to = from + part.rows, step = cache_.fixed_step();
  if (from >= sequence.job.prompt.size()) {
    if (from == sequence.job.prompt.size()) sequence.state->deviate(2 * static_cast<std::uint64_t>(from) + 1);
  } else if (fixed_end_at_or_below(from, step) != from || fixed_end_above(from, step) != to) {
    sequence.state->deviate(2 * static_cast<std::uint64_t>(to));
  }
}

void Scheduler::after_forward(std::vector<Part>& parts, const model::StepOutput& output) {
  std::vector<std::int32_t> greedy_ids(static_cast<std::size_t>(output.logits.rows));
  if (!greedy_ids.empty()) {
    model_.backend().argmax(output.logits, argmax_ids_.i32());
    model_.backend().download(greedy_ids.data(), argmax_ids_.data(), greedy_ids.size() * sizeof(std::int32_t));
  } else {
    model_.backend().synchronize();  // the step's time is the measure of the next one's size
  }
  for (Part& part : parts) guarded(*part.sequence, [&] { after_part(part, output, greedy_ids); });
}

void Scheduler::after_part(Part& part, const model::StepOutput& output, std::span<const std::int32_t> greedy_ids) {
  Sequence& sequence = *part.sequence;
  std::vector<SnapshotRef> captured = sequence.state->advance(part.rows);
  if (sequence.job.embed_only) {
    sum_hidden(sequence, part, output);
    return;
  }
  std::span<const float> logits;
  if (part.logits_row >= 0) {
    const bool keep = !part.decoding && cache_.wants(sequence.job.prompt.symbols, true);
    if (keep || !sequence.sampler.plain_greedy() || sequence.job.top_logprobs >= 0 || sequence.job.constraint) {
      logits = host_logits(output, part.logits_row);
    }
  }
  if (part.decoding) {
    snapshot_answer(sequence);
  } else {
    take_snapshots(sequence, part, logits, std::move(captured));
  }
  if (part.logits_row >= 0) {
    const bool greedy = sequence.sampler.plain_greedy() && !sequence.job.constraint;
    choose_token(sequence, logits, greedy ? greedy_ids[static_cast<std::size_t>(part.logits_row)] : -1);
  }
}

std::span<const float> Scheduler::host_logits(const model::StepOutput& output, std::int64_t row) {
  const auto cols = static_cast<std::size_t>(output.logits.cols);
  const float* data = output.logits.data + row * output.logits.cols;
  if (model_.backend().is_host_memory()) return {data, cols};
  downloaded_.resize(cols);
  model_.backend().download(downloaded_.data(), data, cols * sizeof(float));
  return downloaded_;
}

/// Keeps the snapshots that the prefill of this part reached.
void Scheduler::take_snapshots(Sequence& sequence, const Part& part, std::span<const float> logits,
                               std::vector<SnapshotRef> captured) {
  const auto prefix = [&](std::int64_t position) {
    return std::span<const Symbol>(sequence.symbols).first(static_cast<std::size_t>(position));
  };
  for (std::size_t i = 0; i < captured.size(); ++i) {
    cache_.keep(prefix(captured[i]->position), captured[i], part.captures[i].kind);
  }
  const std::int64_t position = sequence.state->position();
  while (sequence.next_planned < sequence.planned.size() && sequence.planned[sequence.next_planned].position <= position) {
    const PlannedSnapshot planned = sequence.planned[sequence.next_planned++];
    const bool with_logits = planned.kind == SnapshotKind::prompt_end;
    if (planned.position < position || !cache_.wants(prefix(position), with_logits)) continue;
    cache_.keep(prefix(position), copy_state(sequence, with_logits ? logits : std::span<const float>()), planned.kind);
  }
}

/// Long answers leave block snapshots too: an edit or a retry inside one goes back a block step at most.
void Scheduler::snapshot_answer(Sequence& sequence) {
  const std::int64_t position = sequence.state->position();
  if (!cache_.enabled() || position % cache_.block_step(position) != 0) return;
  const auto prefix = std::span<const Symbol>(sequence.symbols).first(static_cast<std::size_t>(position));
  if (cache_.wants(prefix, false)) cache_.keep(prefix, copy_state(sequence, {}), SnapshotKind::block);
}

SnapshotRef Scheduler::copy_state(Sequence& sequence, std::span<const float> logits) {
  const Profiler::Scope scope(options_.profiler, "snapshot", 2 * pool_.state_bytes());
  return sequence.state->snapshot({logits.begin(), logits.end()});
}

void Scheduler::sum_hidden(Sequence& sequence, const Part& part, const model::StepOutput& output) {
  const auto hidden_size = sequence.hidden_sum.size();
  downloaded_.resize(static_cast<std::size_t>(part.rows) * hidden_size);
  model_.backend().download(downloaded_.data(), output.hidden.data + part.first_row * output.hidden.cols,
                            downloaded_.size() * sizeof(float));
  for (std::size_t i = 0; i < downloaded_.size(); ++i) {
    sequence.hidden_sum[i % hidden_size] += static_cast<double>(downloaded_[i]);
  }
  if (sequence.prefilling()) return;
  const auto tokens = static_cast<double>(sequence.job.prompt.size());
  for (const double sum : sequence.hidden_sum) sequence.result.embedding.push_back(static_cast<float>(sum / tokens));
  finish(sequence, FinishReason::stop);
}

/// `greedy_id`: the argmax if the backend made the choice, else -1 and `logits` are there.
void Scheduler::choose_token(Sequence& sequence, std::span<const float> logits, std::int32_t greedy_id) {
  std::span<const std::uint32_t> allowed;
  if (sequence.job.constraint) {
    const auto vocab_size = static_cast<std::size_t>(model_.config().text.vocab_size);
    sequence.allowed.assign((vocab_size + 31) / 32, ~std::uint32_t{0});
    if (sequence.job.constraint->mask(sequence.allowed)) allowed = sequence.allowed;
  }
  emit_token(sequence, greedy_id >= 0 ? greedy_id : sequence.sampler.sample(logits, allowed), logits);
}

void Scheduler::emit_token(Sequence& sequence, std::int32_t id, std::span<const float> logits) {
  Job& job = sequence.job;
  RequestResult& result = sequence.result;
  if (result.token_ids.empty()) {
    sequence.decode_started = Clock::now();
    result.timings.first_token_ms = milliseconds(job.submitted, sequence.decode_started);
    result.timings.prefill_ms = milliseconds(sequence.started, sequence.decode_started) -
                                (result.timings.image_ms - job.image_ms);
  }
  sequence.sampler.accept(id);
  if (job.constraint) job.constraint->accept(id);
  result.token_ids.push_back(id);
  sequence.symbols.push_back(static_cast<Symbol>(id));
  ++counters_.generated_tokens_total;

  TokenEvent event;
  event.id = id;
  if (job.top_logprobs >= 0) {
    event.chosen = logprob_of(logits, id);
    event.top = top_logprobs(logits, job.top_logprobs);
  }
  event.text = job.text->push(id);
  std::optional<FinishReason> reason;
  if (job.text->stopped()) {
    reason = FinishReason::stop;
    result.stop_string = job.text->stop_string();
  } else if (is_end(id) && !job.ignore_eos) {
    reason = FinishReason::stop;
  } else if (static_cast<std::int64_t>(result.token_ids.size()) >= job.max_tokens) {
    reason = FinishReason::length;
  }
  if (reason && !job.text->stopped()) event.text += job.text->flush();
  result.text += event.text;
  if (job.on_token) job.on_token(event);
  if (reason) finish(sequence, *reason);
}

void Scheduler::finish(Sequence& sequence, FinishReason reason) {
  Job& job = sequence.job;
  RequestResult& result = sequence.result;
  sequence.done = true;
  result.finish_reason = reason;
  result.prompt_tokens = job.prompt.size();
  if (!result.token_ids.empty()) result.timings.decode_ms = milliseconds(sequence.decode_started, Clock::now());
  if (reason == FinishReason::cancelled) ++counters_.requests_cancelled;
  if (reason == FinishReason::error) ++counters_.requests_failed;
  counters_.prompt_tokens_total += static_cast<std::uint64_t>(result.prompt_tokens);
  counters_.cached_tokens_total += static_cast<std::uint64_t>(result.cached_tokens);
  if (sequence.state && reason != FinishReason::error && !job.embed_only && sequence.state->position() > 0) {
    // The state itself becomes the snapshot: nothing is copied. It ends before the last token, which was never fed.
    const auto position = static_cast<std::size_t>(sequence.state->position());
    const auto prefix = std::span<const Symbol>(sequence.symbols).first(position);
    const auto kind = sequence.prefilling()                                       ? SnapshotKind::block
                      : sequence.state->position() == sequence.job.prompt.size() ? SnapshotKind::prompt_end
                                                                                 : SnapshotKind::turn_end;
    if (cache_.wants(prefix, false)) cache_.keep(prefix, std::move(*sequence.state).finish(), kind);
  }
  sequence.state.reset();
  sequence.features.clear();  // nothing of it is left on the device when its end is told
  publish_metrics();  // whoever waits for the result sees figures that include it
  try {
    if (job.on_done) job.on_done(result);
  } catch (const std::exception& error) {
    log::error("a request's on_done callback failed: {}", error.what());
  }
  sequence.ticket->finish(std::move(result));
}

void Scheduler::fail(Sequence& sequence, const Error& error) {
  if (sequence.done) return;
  sequence.result.error = error;
  finish(sequence, FinishReason::error);
}

void Scheduler::publish_metrics() {
  counters_.slots_busy = static_cast<int>(std::ranges::count_if(active_, [](const auto& sequence) { return !sequence->done; }));
  counters_.queued = static_cast<int>(waiting_.size());
  counters_.kv_bytes = pool_.bytes_in_use();
  counters_.cache_ram_bytes = cache_.store().bytes();
  counters_.cache_disk_bytes = cache_.disk_bytes();
  counters_.cache_hits = cache_.hits();
  counters_.cache_misses = cache_.misses();
  counters_.cache_evictions = cache_.store().evictions();
  const std::scoped_lock lock(mutex_);
  published_ = counters_;
}

}  // namespace heirloom::engine

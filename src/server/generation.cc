#include "server/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace heirloom::server {

void GenerationStats::record_first_token(double seconds) {
  const std::lock_guard lock(mutex);
  constexpr std::size_t kBounds = std::size(kFirstTokenBounds);
  first_token_buckets.resize(kBounds + 1);
  const auto bound = std::lower_bound(std::begin(kFirstTokenBounds), std::end(kFirstTokenBounds), seconds);
  ++first_token_buckets[static_cast<std::size_t>(bound - std::begin(kFirstTokenBounds))];
  first_token_sum += seconds;
  ++first_token_count;
}

Generation::Generation(GenerationSpec spec, std::unique_ptr<GenerationListener> listener, GenerationStats& stats, Post post)
    : spec_(std::move(spec)), listener_(std::move(listener)), stats_(stats), post_(std::move(post)) {
  stats_.alive.fetch_add(1);
}

Generation::~Generation() {
  listener_.reset();
  stats_.alive.fetch_sub(1);
}

void Generation::start(Engine& engine) {
  begun_ = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < spec_.choices; ++i) choices_.push_back({OutputParser(spec_.parser), nullptr});
    open_ = spec_.choices;
  }
  try {
    for (int i = 0; i < spec_.choices; ++i) {
      Request request = spec_.choices == 1 ? std::move(spec_.request) : spec_.request;
      request.sampling.seed += static_cast<std::uint64_t>(i);
      if (spec_.make_constraint) request.constraint = spec_.make_constraint();
      const bool keep_tokens = request.top_logprobs >= 0;
      auto self = shared_from_this();
      auto handle = engine.submit(
          std::move(request),
          [self, i, keep_tokens](const TokenEvent& event) {
            TokenEvent copy;
            copy.id = event.id;
            copy.text = event.text;
            if (keep_tokens) {
              copy.chosen = event.chosen;
              copy.top = event.top;
            }
            self->push({i, std::move(copy), nullptr});
          },
          [self, i](const RequestResult& result) { self->push({i, {}, std::make_shared<RequestResult>(result)}); });
      stats_.running.fetch_add(1);
      const std::lock_guard lock(mutex_);
      choices_[static_cast<std::size_t>(i)].handle = handle;
      if (cancelled_) handle->cancel();
    }
  } catch (...) {
    // The choices submitted before the one that failed end on their own; nobody listens to them.
    cancel();
    const std::lock_guard lock(mutex_);
    for (const Choice& choice : choices_) {
      if (choice.handle) stats_.running.fetch_sub(1);
    }
    throw;
  }
  post_([self = shared_from_this()] {
    self->listener_->on_start();
    {
      const std::lock_guard lock(self->mutex_);
      self->started_ = true;  // not before: what tokens brought must not overtake on_start
      if (!self->wants_drain()) return;
    }
    self->post_drain();
  });
}

bool Generation::cancel() noexcept {
  std::vector<std::shared_ptr<RequestHandle>> handles;
  bool running = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    running = open_ > 0;
    for (const Choice& choice : choices_) {
      if (choice.handle && !choice.ended) handles.push_back(choice.handle);
    }
  }
  for (const auto& handle : handles) handle->cancel();
  return running;
}

// Nothing is posted with the mutex held: the I/O thread that this wakes may take the processor from the engine's thread at once,
// and would only run into the mutex.
void Generation::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
    if (!wants_drain()) return;
  }
  post_drain();
}

/// With mutex_ held: whether there is something to drain and nobody about to. The caller then posts.
bool Generation::wants_drain() { return started_ && !queue_.empty() && !std::exchange(scheduled_, true); }

void Generation::post_drain() {
  post_([self = shared_from_this()] { self->drain(); });
}

void Generation::drain() {
  std::deque<Item> items;
  {
    const std::lock_guard lock(mutex_);
    items.swap(queue_);
  }
  try {
    std::vector<OutputDelta> deltas;
    std::vector<TokenEvent> tokens;
    // Tokens of one choice that are already here go out together.
    for (std::size_t i = 0; i < items.size(); ++i) {
      Item& item = items[i];
      if (cancelled_.load(std::memory_order_relaxed) && !item.result) continue;
      handle_item(item, deltas);
      const bool with_logprobs = item.token.chosen.has_value();
      if (with_logprobs) tokens.push_back(std::move(item.token));
      const bool more = i + 1 < items.size() && items[i + 1].choice == item.choice && !item.result;
      if (!more && (!deltas.empty() || !tokens.empty())) {
        listener_->on_deltas(item.choice, std::exchange(deltas, {}), std::exchange(tokens, {}));
      }
      if (!item.result) continue;
      Choice& choice = choices_[static_cast<std::size_t>(item.choice)];
      ChoiceEnd end;
      end.result = std::move(*item.result);
      if (choice.cut_after_call && end.result.finish_reason == FinishReason::cancelled) {
        end.result.finish_reason = FinishReason::stop;  // ended by us, as asked
      }
      end.called_tools = choice.parser.finished_calls() > 0;
      listener_->on_choice_end(item.choice, std::move(end));
      bool all = false;
      {
        const std::lock_guard lock(mutex_);
        choice.ended = true;
        all = --open_ == 0;
      }
      if (all) listener_->on_end();
    }
  } catch (const std::exception& error) {
    log::error("request failed while its answer was written: {}", error.what());
    cancel();
  }
  {
    const std::lock_guard lock(mutex_);
    scheduled_ = false;
    if (!wants_drain()) return;
  }
  post_drain();
}

void Generation::handle_item(Item& item, std::vector<OutputDelta>& deltas) {
  Choice& choice = choices_[static_cast<std::size_t>(item.choice)];
  if (!item.result) {
    if (!first_token_seen_) {
      first_token_seen_ = true;
      stats_.record_first_token(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count());
    }
    choice.fed_bytes += item.token.text.size();
    if (choice.cut_after_call) return;
    choice.parser.feed(item.token.text, deltas);
    if (spec_.one_call && choice.parser.finished_calls() > 0) {
      // What the same token brought after the call is dropped with the rest of the answer.
      const auto end = std::find_if(deltas.begin(), deltas.end(), [](const OutputDelta& delta) {
        return delta.kind == OutputDelta::Kind::call_end;
      });
      if (end != deltas.end()) deltas.erase(end + 1, deltas.end());
      choice.cut_after_call = true;
      const std::lock_guard lock(mutex_);
      if (choice.handle) choice.handle->cancel();
    }
    return;
  }
  if (!choice.cut_after_call && !cancelled_.load(std::memory_order_relaxed)) {
    // Text held back as the possible beginning of a stop string may come with the result alone.
    const std::string_view whole = item.result->text;
    if (whole.size() > choice.fed_bytes) choice.parser.feed(whole.substr(choice.fed_bytes), deltas);
    const bool truncated = item.result->finish_reason != FinishReason::stop;
    choice.parser.finish(truncated, deltas);
  }
  stats_.running.fetch_sub(1);
  stats_.calls_in_reasoning.fetch_add(static_cast<std::uint64_t>(choice.parser.calls_in_reasoning()));
  stats_.malformed_calls.fetch_add(static_cast<std::uint64_t>(choice.parser.malformed_calls()));
}

}  // namespace heirloom::server

// One API request on its way through the engine: submits its choices, reads their text with an OutputParser, and tells a
// listener (one per API) what came out. The engine's thread only appends to a queue; parsing and formatting happen on I/O
// threads, one at a time per request.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "heirloom/engine.h"
#include "server/api_error.h"
#include "server/output_parser.h"

namespace heirloom::server {

struct ChoiceEnd {
  RequestResult result;
  bool called_tools = false;   // at least one call, and the answer was not cut off in the middle of one
};

/// Calls come one at a time, in order, on I/O threads.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  /// Every choice is admitted; from here on the request will not be refused.
  virtual void on_start() = 0;
  /// `tokens` are the tokens since the last call whose text is in `deltas` or still pending; filled only with logprobs.
  virtual void on_deltas(int choice, std::vector<OutputDelta> deltas, std::vector<TokenEvent> tokens) = 0;
  virtual void on_choice_end(int choice, ChoiceEnd end) = 0;
  virtual void on_end() = 0;
};

/// What all generations of a server share.
struct GenerationStats {
  std::atomic<int> running{0};                        // admitted choices that have not ended
  std::atomic<int> alive{0};                          // Generation objects
  std::atomic<std::uint64_t> calls_in_reasoning{0};
  std::atomic<std::uint64_t> malformed_calls{0};
  std::atomic<std::uint64_t> cancelled{0};            // by clients that went away
  std::mutex mutex;
  std::vector<std::uint64_t> first_token_buckets;     // counts per bound of kFirstTokenBounds, then the rest
  double first_token_sum = 0;
  std::uint64_t first_token_count = 0;
  void record_first_token(double seconds);
};
inline constexpr double kFirstTokenBounds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};

struct GenerationSpec {
  Request request;
  int choices = 1;
  OutputParserOptions parser;
  bool one_call = false;       // parallel_tool_calls false: the answer ends with its first call
  /// Makes the constraint of one choice; empty = none.
  std::function<std::shared_ptr<TokenConstraint>()> make_constraint;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  using Post = std::function<void(std::function<void()>)>;

  Generation(GenerationSpec spec, std::unique_ptr<GenerationListener> listener, GenerationStats& stats, Post post);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Submits every choice. Throws what the engine throws, with nothing left running; the listener then hears nothing.
  void start(Engine& engine);
  /// From any thread; the listener hears the end of every choice (finish_reason cancelled). False: every choice had ended.
  bool cancel() noexcept;

 private:
  struct Choice {
    OutputParser parser;
    std::shared_ptr<RequestHandle> handle;
    std::size_t fed_bytes = 0;   // of the answer's text, given to the parser
    bool ended = false;
    bool cut_after_call = false;
  };
  struct Item {
    int choice;
    TokenEvent token;
    std::shared_ptr<RequestResult> result;  // set on the last item of a choice
  };

  void push(Item item);
  bool wants_drain();
  void post_drain();
  void drain();
  void handle_item(Item& item, std::vector<OutputDelta>& deltas);

  GenerationSpec spec_;
  std::unique_ptr<GenerationListener> listener_;
  GenerationStats& stats_;
  Post post_;
  std::chrono::steady_clock::time_point begun_;
  bool first_token_seen_ = false;

  std::mutex mutex_;
  std::deque<Item> queue_;
  bool scheduled_ = false;
  bool started_ = false;    // the listener has been told
  std::atomic<bool> cancelled_{false};  // written under mutex_; nobody reads what would still be said
  std::vector<Choice> choices_;
  int open_ = 0;
};

}  // namespace heirloom::server

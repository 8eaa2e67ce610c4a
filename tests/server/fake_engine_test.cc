#include "server/fake_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <thread>

#include "base/check.h"

namespace heirloom::test {
namespace {

constexpr std::array kTags{"<|im_start|>", "<|im_end|>", "<|image_pad|>", "<think>", "</think>", "<tool_call>", "</tool_call>"};
constexpr std::int32_t kEnd = 256 + 1;
constexpr std::int32_t kFirstShownTag = 256 + 3;

std::string render_content(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const Json& part : content) text += part.at("type") == "image" ? "<|image_pad|>" : part.at("text").get<std::string>();
  return text;
}

bool sampled_bit(const std::vector<std::uint32_t>& mask, std::int32_t id) {
  return (mask[static_cast<std::size_t>(id / 32)] >> (id % 32) & 1u) != 0;
}

/// Whole characters out, the beginning of a stop string held back.
class Emitter {
 public:
  explicit Emitter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  std::string push(const std::string& bytes) {
    pending_ += bytes;
    for (const std::string& stop : stops_) {
      if (const auto at = pending_.find(stop); at != std::string::npos) {
        matched_ = stop;
        std::string out = pending_.substr(0, at);
        pending_.clear();
        return out;
      }
    }
    std::size_t hold = 0;
    for (const std::string& stop : stops_) {
      for (std::size_t n = std::min(stop.size() - 1, pending_.size()); n > hold; --n) {
        if (stop.starts_with(pending_.substr(pending_.size() - n))) hold = n;
      }
    }
    std::size_t ready = pending_.size() - hold;
    // Back to the last whole character.
    std::size_t start = ready;
    while (start > 0 && ready - start < 4 && (static_cast<unsigned char>(pending_[start - 1]) & 0xc0) == 0x80) --start;
    if (start > 0) {
      const auto lead = static_cast<unsigned char>(pending_[start - 1]);
      const std::size_t size = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
      if (ready - (start - 1) < size) ready = start - 1;
    }
    std::string out = pending_.substr(0, ready);
    pending_.erase(0, ready);
    return out;
  }
  std::string flush() { return std::exchange(pending_, {}); }
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_, matched_;
};

}  // namespace

struct FakeEngine::Job : RequestHandle {
  Request request;
  FakeAnswer answer;
  std::function<void(const TokenEvent&)> on_token;
  std::function<void(const RequestResult&)> on_done;
  RequestResult result;
  std::atomic<bool> cancelled{false};
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool done = false;

  void cancel() noexcept override {
    cancelled.store(true);
    const std::lock_guard lock(mutex);
    changed.notify_all();
  }
  const RequestResult& wait() override {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
    return result;
  }
  bool finished() const noexcept override {
    const std::lock_guard lock(mutex);
    return done;
  }
  void pause(std::chrono::microseconds time) {
    if (time.count() == 0) return;
    std::unique_lock lock(mutex);
    changed.wait_for(lock, time, [&] { return cancelled.load(); });
  }
};

FakeEngine::FakeEngine(int context_tokens, bool images) : context_tokens_(context_tokens), images_(images) {
  script = [](const Request& request) {
    FakeAnswer answer;
    if (!request.messages.is_array()) return answer;
    for (const Json& message : request.messages) {
      if (message.at("role") != "user") continue;
      const std::string text = render_content(message.at("content"));
      if (const auto at = text.find("say:"); at != std::string::npos) answer.text = text.substr(at + 4);
    }
    return answer;
  };
}

FakeEngine::~FakeEngine() {
  while (running_.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Request FakeEngine::last_request() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

std::shared_ptr<RequestHandle> FakeEngine::submit(Request request, std::function<void(const TokenEvent&)> on_token,
                                                  std::function<void(const RequestResult&)> on_done) {
  const std::int64_t prompt = inspect_prompt(request).prompt_tokens;
  if (prompt + std::max(1, request.max_tokens) > context_tokens_) {
    fail(ErrorKind::does_not_fit, "the prompt has {} tokens and max_tokens is {}; the context holds {}", prompt, request.max_tokens, context_tokens_);
  }
  for (const ImageInput& image : request.images) {
    if (image.bytes.size() < 8) fail(ErrorKind::bad_file, "{}: not a picture", image.name);
  }
  auto job = std::make_shared<Job>();
  job->answer = script(request);
  {
    const std::lock_guard lock(mutex_);
    last_ = request;
  }
  job->result.prompt_tokens = prompt;
  job->request = std::move(request);
  job->on_token = std::move(on_token);
  job->on_done = std::move(on_done);
  running_.fetch_add(1);
  total_.fetch_add(1);
  std::thread([this, job]() mutable {
    run(*job);
    job.reset();  // before the engine may go away
    running_.fetch_sub(1);
  }).detach();
  return job;
}

void FakeEngine::run(Job& job) {
  RequestResult& result = job.result;
  result.cached_tokens = job.answer.cached_tokens;
  job.pause(std::chrono::duration_cast<std::chrono::microseconds>(job.answer.prefill));
  result.finish_reason = FinishReason::stop;
  if (job.request.embed_only) {
    for (int i = 0; i < 8; ++i) result.embedding.push_back(static_cast<float>(result.prompt_tokens) + static_cast<float>(i) / 8);
  } else {
    const std::vector<std::int32_t> script_ids = tokenize(job.answer.text, true);
    const int limit = job.request.max_tokens > 0 ? job.request.max_tokens : context_tokens_ - static_cast<int>(result.prompt_tokens);
    Emitter emitter(job.request.stop);
    std::size_t next = 0;
    for (int step = 0;; ++step) {
      if (job.cancelled.load()) {
        result.finish_reason = FinishReason::cancelled;
        break;
      }
      if (step == job.answer.fail_after) {
        result.finish_reason = FinishReason::error;
        result.error = Error(ErrorKind::internal, "the scripted failure");
        break;
      }
      if (job.answer.endless && next == script_ids.size()) next = 0;
      std::int32_t id = next < script_ids.size() ? script_ids[next] : kEnd;
      if (job.request.constraint) {
        std::vector<std::uint32_t> mask(static_cast<std::size_t>((vocab_size() + 31) / 32), ~0u);
        if (job.request.constraint->mask(mask) && !sampled_bit(mask, id)) {
          // The script is off the grammar: end if possible, else close what is open, else the first allowed character.
          id = sampled_bit(mask, kEnd) ? kEnd : 0;
          for (const char candidate : std::string_view("}]\"0")) {
            if (id == 0 && sampled_bit(mask, candidate)) id = candidate;
          }
          for (int candidate = 1; id == 0 && candidate < vocab_size(); ++candidate) {
            if (candidate != kEnd && sampled_bit(mask, candidate)) id = candidate;
          }
          next = script_ids.size();
        } else {
          ++next;
        }
        job.request.constraint->accept(id);
      } else {
        ++next;
      }
      result.token_ids.push_back(id);
      TokenEvent event;
      event.id = id;
      const bool end = id == kEnd && !job.request.ignore_eos;
      if (job.request.top_logprobs >= 0) {
        event.chosen = TokenLogprob{id, -0.25f};
        for (int i = 0; i < job.request.top_logprobs; ++i) event.top.push_back({(id + i) % 256, -0.25f - static_cast<float>(i) * 2});
      }
      if (!end) event.text = emitter.push(id < 256 || id >= kFirstShownTag ? token_text(id) : "");
      const bool stopped = !emitter.matched().empty();
      const bool full = step + 1 >= limit;
      if ((end || full) && !stopped) event.text += emitter.flush();
      result.text += event.text;
      if (job.on_token) job.on_token(event);
      if (stopped) result.stop_string = emitter.matched();
      if (end || stopped) break;
      if (full) {
        result.finish_reason = FinishReason::length;
        break;
      }
      job.pause(job.answer.token_delay);
    }
  }
  if (result.finish_reason == FinishReason::cancelled) cancelled_.fetch_add(1);
  if (job.on_done) job.on_done(result);
  job.on_token = nullptr;
  job.on_done = nullptr;
  const std::lock_guard lock(job.mutex);
  job.done = true;
  job.changed.notify_all();
}

PromptInfo FakeEngine::inspect_prompt(const Request& request) const {
  PromptInfo info;
  if (request.token_ids) {
    info.token_ids = *request.token_ids;
  } else if (request.raw_text) {
    info.text = *request.raw_text;
  } else {
    if (request.tools.is_array()) info.text += "<|im_start|>system\nCall like <function=NAME>.\n" + request.tools.dump() + "<|im_end|>\n";
    bool user = false;
    for (const Json& message : request.messages) {
      user |= message.at("role") == "user";
      info.text += "<|im_start|>" + message.at("role").get<std::string>() + "\n" + render_content(message.at("content"));
      if (message.contains("tool_calls")) info.text += message.at("tool_calls").dump();
      info.text += "<|im_end|>\n";
    }
    if (!user) fail(ErrorKind::usage, "chat template: No user query found in messages.");
    info.text += "<|im_start|>assistant\n";
    const bool thinking = request.template_kwargs.is_object() && request.template_kwargs.value("enable_thinking", false);
    info.text += thinking ? "<think>\n" : "<think>\n\n</think>\n\n";
  }
  if (!request.token_ids) info.token_ids = tokenize(info.text, true);
  info.prompt_tokens = static_cast<std::int64_t>(info.token_ids.size());
  return info;
}

std::vector<std::int32_t> FakeEngine::tokenize(std::string_view text, bool parse_special) const {
  std::vector<std::int32_t> ids;
  while (!text.empty()) {
    std::int32_t id = static_cast<unsigned char>(text[0]);
    std::size_t size = 1;
    for (std::size_t tag = 0; parse_special && tag < kTags.size(); ++tag) {
      if (text.starts_with(kTags[tag])) {
        id = 256 + static_cast<std::int32_t>(tag);
        size = std::string_view(kTags[tag]).size();
      }
    }
    ids.push_back(id);
    text.remove_prefix(size);
  }
  return ids;
}

std::string FakeEngine::token_text(std::int32_t id) const {
  if (id < 256) return std::string(1, static_cast<char>(id));
  const auto tag = static_cast<std::size_t>(id - 256);
  return tag < kTags.size() ? kTags[tag] : "";
}

int FakeEngine::vocab_size() const { return 256 + 16; }
std::vector<std::int32_t> FakeEngine::end_token_ids() const { return {kEnd}; }

EngineMetrics FakeEngine::metrics() const {
  EngineMetrics metrics;
  metrics.requests_total = total_.load();
  metrics.requests_cancelled = static_cast<std::uint64_t>(cancelled_.load());
  metrics.slots_busy = running_.load();
  metrics.slots_total = 4;
  return metrics;
}

// The other tests lean on these.
TEST(fake_engine, holds_back_stop_strings_and_half_characters) {
  FakeEngine engine;
  Request request;
  request.messages = Json::array({{{"role", "user"}, {"content", "say:gr\xc3\xbc\xc3\x9f##!###tail"}}});
  request.stop = {"###"};
  std::vector<std::string> pieces;
  auto handle = engine.submit(request, [&](const TokenEvent& event) { pieces.push_back(event.text); }, nullptr);
  const RequestResult& result = handle->wait();
  EXPECT_EQ(result.text, "gr\xc3\xbc\xc3\x9f##!");
  EXPECT_EQ(result.stop_string, "###");
  for (const std::string& piece : pieces) EXPECT_TRUE(piece.empty() || (static_cast<unsigned char>(piece[0]) & 0xc0) != 0x80);
}

}  // namespace heirloom::test

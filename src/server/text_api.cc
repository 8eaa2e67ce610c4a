// POST /v1/completions (plain text in, plain text out) and POST /v1/embeddings.
#include <cmath>
#include <cstring>
#include <mutex>

#include "server/api_context.h"
#include "server/base64.h"
#include "server/logprobs.h"

namespace heirloom::server {
namespace {

struct Prompt {
  std::optional<std::string> text;
  std::optional<std::vector<std::int32_t>> ids;
};

std::vector<std::int32_t> read_ids(const Json& list, const std::string& path, int vocab_size) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    const double value = id.is_number() ? id.get<double>() : -1;  // JSON has one number type: 5.0 is the id 5
    if (!(value >= 0 && value < vocab_size) || std::floor(value) != value) {
      bad_field(fmt::format("{}[{}]", path, i), "must be a token id from 0 to {}, found {}", vocab_size - 1, describe(id));
    }
    ids.push_back(static_cast<std::int32_t>(value));
  }
  return ids;
}

/// A string, a list of strings, a list of ids, or a list of lists of ids.
std::vector<Prompt> read_prompts(const Json& value, const std::string& path, int vocab_size, std::size_t most) {
  std::vector<Prompt> prompts;
  const auto add_text = [&](const Json& text, const std::string& where) {
    if (text.get_ref<const std::string&>().empty()) bad_field(where, "must not be an empty string");
    prompts.push_back({text.get<std::string>(), std::nullopt});
  };
  if (value.is_string()) {
    add_text(value, path);
  } else if (value.is_array() && !value.empty() && value[0].is_number()) {
    prompts.push_back({std::nullopt, read_ids(value, path, vocab_size)});
  } else if (value.is_array() && !value.empty()) {
    if (value.size() > most) bad_field(path, "has {} entries, at most {} are taken", value.size(), most);
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string where = fmt::format("{}[{}]", path, i);
      if (value[i].is_string()) {
        add_text(value[i], where);
      } else if (value[i].is_array() && !value[i].empty()) {
        prompts.push_back({std::nullopt, read_ids(value[i], where, vocab_size)});
      } else {
        bad_field(where, "must be a non-empty string or list of token ids, found {}", describe(value[i]));
      }
    }
  } else {
    bad_field(path, "must be a non-empty string, list of strings or list of token ids, found {}", describe(value));
  }
  return prompts;
}

void set_prompt(Request& request, Prompt prompt) {
  if (prompt.text) request.raw_text.emplace(std::move(*prompt.text));
  if (prompt.ids) request.token_ids.emplace(std::move(*prompt.ids));
}

// ---- /v1/completions ------------------------------------------------------------------------------------------------

/// One response made of several generations (prompts), each with its choices.
class TextAnswer : public std::enable_shared_from_this<TextAnswer> {
 public:
  struct Options {
    bool stream = false, include_usage = false, logprobs = false, echo = false;
  };

  TextAnswer(ApiContext& api, Options options, int prompts, int choices, std::shared_ptr<HttpResponder> responder)
      : api_(api),
        options_(options),
        responder_(std::move(responder)),
        id_(random_id("cmpl-")),
        created_(unix_time()),
        choices_per_prompt_(choices),
        open_(prompts),
        texts_(static_cast<std::size_t>(prompts * choices)) {}

  void set_echo(int prompt, const std::string& text) {
    for (int i = 0; i < choices_per_prompt_; ++i) texts_[index(prompt, i)].text = text;
  }

  /// Every prompt is admitted: what has been held back until now goes out. Without this call nothing is ever sent.
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    if (options_.stream) {
      responder_->begin_stream(200, stream_headers());
      const auto held = std::exchange(held_, {});
      if (options_.echo) {
        for (std::size_t i = 0; i < texts_.size(); ++i) send_choice(i, texts_[i].text, nullptr);
      }
      for (const std::string& event : held) responder_->write(event);
    }
    if (open_ == 0) finish();
  }

  // The rest is called from several generations, on several threads.
  void deltas(int prompt, int choice, const std::vector<OutputDelta>& deltas, const std::vector<TokenEvent>& tokens) {
    const std::lock_guard lock(mutex_);
    Choice& target = texts_[index(prompt, choice)];
    std::string text;
    for (const OutputDelta& delta : deltas) text += delta.text;
    Json logprobs;
    if (options_.logprobs) {
      logprobs = text_logprobs(api_.engine, tokens, target.offset);
      for (const auto& [key, list] : logprobs.items()) {
        for (const Json& one : list) target.logprobs[key].push_back(one);
      }
    }
    if (!options_.stream) {
      target.text += text;
    } else if (!text.empty()) {
      send_choice(index(prompt, choice), text, nullptr);
    }
  }

  void choice_end(int prompt, int choice, ChoiceEnd end) {
    const std::lock_guard lock(mutex_);
    Choice& target = texts_[index(prompt, choice)];
    if (choice == 0) prompt_tokens_ += end.result.prompt_tokens;
    if (choice == 0) cached_tokens_ += end.result.cached_tokens;
    completion_tokens_ += static_cast<std::int64_t>(end.result.token_ids.size());
    if (end.result.finish_reason == FinishReason::error || end.result.finish_reason == FinishReason::cancelled) {
      if (error_) return;
      error_ = run_error(end.result);
      if (options_.stream) send_event(dump(error_body(*error_, ErrorStyle::openai)));
      return;
    }
    target.finish_reason = end.result.finish_reason == FinishReason::length ? "length" : "stop";
    if (options_.stream) send_choice(index(prompt, choice), "", target.finish_reason);
  }

  void prompt_end() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0 && released_) finish();
  }

 private:
  void finish() {
    if (!options_.stream) return respond();
    if (!error_) {
      if (options_.include_usage) {
        Json chunk = envelope();
        chunk["choices"] = Json::array();
        chunk["usage"] = openai_usage(prompt_tokens_, cached_tokens_, completion_tokens_);
        send_event(dump(chunk));
      }
      send_event("[DONE]");
    }
    responder_->end_stream();
  }

  struct Choice {
    std::string text;
    Json logprobs{{"tokens", Json::array()}, {"token_logprobs", Json::array()}, {"top_logprobs", Json::array()}, {"text_offset", Json::array()}};
    std::int64_t offset = 0;
    std::string finish_reason;
  };

  std::size_t index(int prompt, int choice) const { return static_cast<std::size_t>(prompt * choices_per_prompt_ + choice); }

  Json envelope() const {
    return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", api_.engine.model_name()},
            {"system_fingerprint", "heirloom-" HEIRLOOM_VERSION}};
  }

  void send_choice(std::size_t i, const std::string& text, Json finish_reason) {
    Json logprobs;
    if (options_.logprobs && !texts_[i].logprobs["tokens"].empty()) logprobs = std::exchange(texts_[i].logprobs, Choice{}.logprobs);
    Json chunk = envelope();
    chunk["choices"] = Json::array({{{"index", i}, {"text", text}, {"logprobs", std::move(logprobs)}, {"finish_reason", std::move(finish_reason)}}});
    if (options_.include_usage) chunk["usage"] = nullptr;
    send_event(dump(chunk));
  }
  void send_event(const std::string& data) {
    std::string event = "data: " + data + "\n\n";
    if (released_) {
      responder_->write(std::move(event));
    } else {
      held_.push_back(std::move(event));
    }
  }

  void respond() {
    if (error_) return responder_->respond(error_response(*error_, ErrorStyle::openai));
    Json body = envelope();
    body["choices"] = Json::array();
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      Json logprobs;
      if (options_.logprobs) logprobs = std::move(texts_[i].logprobs);
      body["choices"].push_back({{"index", i}, {"text", texts_[i].text}, {"logprobs", std::move(logprobs)}, {"finish_reason", texts_[i].finish_reason}});
    }
    body["usage"] = openai_usage(prompt_tokens_, cached_tokens_, completion_tokens_);
    responder_->respond({200, {{"Content-Type", "application/json"}}, dump(body)});
  }

  ApiContext& api_;
  Options options_;
  std::shared_ptr<HttpResponder> responder_;
  std::string id_;
  std::int64_t created_;
  int choices_per_prompt_;
  std::mutex mutex_;
  int open_;
  bool released_ = false;
  std::vector<std::string> held_;
  std::vector<Choice> texts_;
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
  std::optional<ApiError> error_;
};

class TextListener final : public GenerationListener {
 public:
  TextListener(std::shared_ptr<TextAnswer> answer, int prompt) : answer_(std::move(answer)), prompt_(prompt) {}
  void on_start() override {}
  void on_deltas(int choice, std::vector<OutputDelta> deltas, std::vector<TokenEvent> tokens) override {
    answer_->deltas(prompt_, choice, deltas, tokens);
  }
  void on_choice_end(int choice, ChoiceEnd end) override { answer_->choice_end(prompt_, choice, std::move(end)); }
  void on_end() override { answer_->prompt_end(); }

 private:
  std::shared_ptr<TextAnswer> answer_;
  int prompt_;
};

/// Cancels every generation of one response.
class CancelGroup {
 public:
  void add(const std::shared_ptr<Generation>& generation) {
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      members_.push_back(generation);
      cancelled = cancelled_;
    }
    if (cancelled) generation->cancel();
  }
  void cancel() {
    std::vector<std::weak_ptr<Generation>> members;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      members = members_;
    }
    for (const auto& member : members) {
      if (const auto alive = member.lock()) alive->cancel();
    }
  }

 private:
  std::mutex mutex_;
  bool cancelled_ = false;
  std::vector<std::weak_ptr<Generation>> members_;
};

}  // namespace

void text_completions(ApiContext& api, const HttpRequest& http, const std::shared_ptr<HttpResponder>& responder) {
  constexpr std::size_t kMostPrompts = 64;
  const Json body = parse_body(http);
  Fields fields(body, "");
  fields.string("model");
  std::vector<Prompt> prompts = read_prompts(fields.require("prompt"), "prompt", api.engine.vocab_size(), kMostPrompts);
  Request base;
  read_sampling(fields, api.engine, base);
  constexpr int kDefaultTokens = 16;  // OpenAI's
  base.max_tokens = static_cast<int>(fields.integer("max_tokens", 1, 1 << 30).value_or(kDefaultTokens));
  base.stop = read_stop(fields, "stop", 4);
  TextAnswer::Options options;
  options.stream = fields.boolean("stream").value_or(false);
  if (const Json* stream_options = fields.object("stream_options")) {
    if (!options.stream) bad_field("stream_options", "is only allowed when stream is true");
    options.include_usage = Fields(*stream_options, "stream_options").boolean("include_usage").value_or(false);
  }
  if (const auto logprobs = fields.integer("logprobs", 0, 20)) {
    options.logprobs = true;
    base.top_logprobs = static_cast<int>(*logprobs);
  }
  options.echo = fields.boolean("echo").value_or(false);
  if (options.echo && options.logprobs) bad_field("echo", "cannot be combined with logprobs: the prompt's are not kept");
  const int choices = read_choices(fields);
  if (const auto best_of = fields.integer("best_of", 1, 16); best_of && *best_of > choices) bad_field("best_of", "more than n is not offered here");
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty()) bad_field("suffix", "is not offered here");
  auto constraint = read_response_format(fields, "response_format", false);
  if (auto extension = read_constraint_extensions(fields)) {
    if (constraint) bad_field(extension->path, "only one constraint can be set, response_format is set too");
    constraint = std::move(extension);
  }
  fields.ignore({"user"});
  log_unknown_fields(http.path, fields);
  ConstraintCompiler::Maker make_constraint;
  if (constraint) make_constraint = api.constraints.compile(*constraint);

  const int count = static_cast<int>(prompts.size());
  if (api.stats.running.load() + count * choices > api.options.max_waiting) {
    throw ApiError(503, "too many requests are running or waiting; try again later");
  }
  auto answer = std::make_shared<TextAnswer>(api, options, count, choices, responder);
  auto group = std::make_shared<CancelGroup>();
  std::vector<std::shared_ptr<Generation>> generations;
  for (int i = 0; i < count; ++i) {
    GenerationSpec spec;
    spec.request = base;
    set_prompt(spec.request, std::move(prompts[static_cast<std::size_t>(i)]));
    spec.choices = choices;
    spec.parser.split_reasoning = false;
    spec.make_constraint = make_constraint;
    if (options.echo) {
      std::string text = spec.request.raw_text.value_or("");
      if (spec.request.token_ids) {
        for (const std::int32_t id : *spec.request.token_ids) text += api.engine.token_text(id);
      }
      answer->set_echo(i, text);
    }
    generations.push_back(std::make_shared<Generation>(std::move(spec), std::make_unique<TextListener>(answer, i), api.stats, api.post));
    group->add(generations.back());
  }
  responder->on_disconnect([group, &stats = api.stats] {
    stats.cancelled.fetch_add(1);
    group->cancel();
  });
  for (std::size_t i = 0; i < generations.size(); ++i) {
    try {
      generations[i]->start(api.engine);
    } catch (const Error& error) {
      group->cancel();
      throw submit_error(error);
    }
  }
  answer->release();
}

// ---- /v1/embeddings -------------------------------------------------------------------------------------------------

namespace {

class EmbeddingAnswer {
 public:
  EmbeddingAnswer(ApiContext& api, std::size_t inputs, bool base64, std::shared_ptr<HttpResponder> responder)
      : api_(api), base64_(base64), responder_(std::move(responder)), vectors_(inputs), open_(inputs) {}

  void done(std::size_t input, const RequestResult& result) {
    const std::lock_guard lock(mutex_);
    prompt_tokens_ += result.prompt_tokens;
    const bool failed = result.finish_reason == FinishReason::error || result.finish_reason == FinishReason::cancelled;
    if (failed && !error_) error_ = run_error(result);
    vectors_[input] = result.embedding;
    if (--open_ > 0) return;
    if (error_) return responder_->respond(error_response(*error_, ErrorStyle::openai));
    Json data = Json::array();
    for (std::size_t i = 0; i < vectors_.size(); ++i) {
      Json embedding;
      if (base64_) {
        embedding = base64_encode(std::as_bytes(std::span(vectors_[i])));  // float32, little-endian like the hosts we run on
      } else {
        embedding = vectors_[i];
      }
      data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(embedding)}});
    }
    responder_->respond(json_response({{"object", "list"},
                                       {"data", std::move(data)},
                                       {"model", api_.engine.model_name()},
                                       {"usage", {{"prompt_tokens", prompt_tokens_}, {"total_tokens", prompt_tokens_}}}}));
  }

 private:
  ApiContext& api_;
  bool base64_;
  std::shared_ptr<HttpResponder> responder_;
  std::mutex mutex_;
  std::vector<std::vector<float>> vectors_;
  std::size_t open_;
  std::int64_t prompt_tokens_ = 0;
  std::optional<ApiError> error_;
};

class EmbeddingListener final : public GenerationListener {
 public:
  EmbeddingListener(std::shared_ptr<EmbeddingAnswer> answer, std::size_t input) : answer_(std::move(answer)), input_(input) {}
  void on_start() override {}
  void on_deltas(int, std::vector<OutputDelta>, std::vector<TokenEvent>) override {}
  void on_choice_end(int, ChoiceEnd end) override { answer_->done(input_, end.result); }
  void on_end() override {}

 private:
  std::shared_ptr<EmbeddingAnswer> answer_;
  std::size_t input_;
};

}  // namespace

void embeddings(ApiContext& api, const HttpRequest& http, const std::shared_ptr<HttpResponder>& responder) {
  constexpr std::size_t kMostInputs = 128;
  const Json body = parse_body(http);
  Fields fields(body, "");
  fields.string("model");
  std::vector<Prompt> inputs = read_prompts(fields.require("input"), "input", api.engine.vocab_size(), kMostInputs);
  const auto format = fields.choice("encoding_format", "float base64");
  if (fields.find("dimensions") != nullptr) bad_field("dimensions", "cannot be chosen: the model's hidden size is returned");
  fields.ignore({"user"});
  log_unknown_fields(http.path, fields);

  auto answer = std::make_shared<EmbeddingAnswer>(api, inputs.size(), format == "base64", responder);
  auto group = std::make_shared<CancelGroup>();
  std::vector<std::shared_ptr<Generation>> generations;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    GenerationSpec spec;
    spec.request.embed_only = true;
    spec.parser.split_reasoning = false;
    set_prompt(spec.request, std::move(inputs[i]));
    generations.push_back(std::make_shared<Generation>(std::move(spec), std::make_unique<EmbeddingListener>(answer, i), api.stats, api.post));
    group->add(generations.back());
  }
  responder->on_disconnect([group] { group->cancel(); });
  for (std::size_t i = 0; i < generations.size(); ++i) {
    try {
      generations[i]->start(api.engine);
    } catch (const Error& error) {
      group->cancel();
      throw submit_error(error);
    }
  }
}

}  // namespace heirloom::server

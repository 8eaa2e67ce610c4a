// A needle in 10,000 tokens, asked of a bundled model through the engine, as a user would.
#include "base/check.h"
#include "tools/study/study_bench.h"

namespace heirloom::tools {
namespace {

constexpr std::size_t kTokens = 10000;
constexpr const char* kCode = "7256";

/// Sentences of a story that says nothing about codes, in the words that the demo models were trained on.
std::string sentence(unsigned number) {
  constexpr const char* kWho[] = {"The old man", "A small dog", "The gray cat", "A tired worker", "The nurse", "A group of friends", "The mayor"};
  constexpr const char* kDid[] = {"walked to", "looked at", "talked about", "waited near", "dreamed about", "remembered", "sat beside", "went past"};
  constexpr const char* kWhat[] = {"the river", "the market", "the blue house", "the new bridge", "the old church", "the quiet lake", "the stone wall",
                                   "the apple tree", "the city park", "the dark forest", "the sandy beach"};
  constexpr const char* kWhen[] = {"", " in the morning", " after lunch", " before sunset", " every week", " last summer", " again", "", " in silence"};
  return fmt::format("{} {} {}{}. ", kWho[number % std::size(kWho)], kDid[number / 3 % std::size(kDid)], kWhat[number / 5 % std::size(kWhat)],
                     kWhen[number / 7 % std::size(kWhen)]);
}

/// The story with the needle, about kTokens long.
std::string story(const Engine& engine) {
  std::string text;
  std::vector<std::string> sentences;
  while (engine.tokenize(text, false).size() + 60 < kTokens) {  // 60: the chat template, the question and the needle
    for (unsigned i = 0; i < 16; ++i) {
      sentences.push_back(sentence(static_cast<unsigned>(sentences.size())));
      text += sentences.back();
    }
  }
  sentences.insert(sentences.begin() + static_cast<std::ptrdiff_t>(sentences.size() * 6 / 10), fmt::format("The secret code of Yara is {}. ", kCode));
  text.clear();
  for (const std::string& each : sentences) text += each;
  return text;
}

}  // namespace

void study_needle(StudyBench& bench) {
  const auto ask = [&](EngineOptions options, const char* where, int times) {
    options.model = "demo-moe";
    options.cache_ram_bytes = 0;  // each asking computes the whole prompt
    options.progress = nullptr;
    const std::unique_ptr<Engine> engine = Engine::load(options);
    Request request;
    request.messages = Json::array({{{"role", "user"}, {"content", story(*engine) + "\n\nWhat is the secret code of Yara?"}}});
    request.sampling = engine->default_sampling();
    request.sampling.temperature = 0;
    request.max_tokens = 32;
    RequestResult result;
    std::vector<double> first_token;
    for (int i = 0; i < times; ++i) {
      result = engine->submit(request, {}, {})->wait();
      if (result.error) throw *result.error;
      first_token.push_back(result.timings.first_token_ms);
    }
    const double ms = first_token.back();
    bench.add(fmt::format("{}, first token of {} tokens", where, result.prompt_tokens), {ms, ms, ms, "ms", 1},
              fmt::format("{}: \"{}\"", result.text.find(kCode) != std::string::npos ? "right" : "WRONG", result.text));
    bench.begin_group();
  };
  if (!bench.skipped_without_gpu("needle on the GPU")) ask(bench.engine(), "GPU", 2);  // the second time all kernels are loaded
  EngineOptions on_cpu = bench.engine();
  on_cpu.device = "cpu";
  ask(on_cpu, "CPU", 1);
}

}  // namespace heirloom::tools

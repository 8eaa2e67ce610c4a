// The command line as its users see it: what comes on stdout, what on stderr, and the exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "cli/cli_run.h"

namespace heirloom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(cli, help_lists_every_command_and_each_has_its_own) {
  const Output all = heirloom("--help");
  EXPECT_EQ(all.code, 0);
  for (const char* command : {"run", "chat", "eval", "verify", "quantize", "prune", "info", "tokenize"}) {
    EXPECT_THAT(all.out, HasSubstr(command));
    const Output one = heirloom(std::string(command) + " --help");
    EXPECT_EQ(one.code, 0) << command;
    EXPECT_THAT(one.out, HasSubstr("REQUIRED")) << command;
  }
}

TEST(cli, a_wrong_command_line_is_one_line_and_exit_code_2) {
  for (const char* arguments : {"", "fly", "run", "run demo-vl", "run demo-vl -p x --temperature warm", "run demo-vl -p x --cpu-isa sse9",
                                "run demo-vl -p x --device tpu", "quantize demo-vl /tmp/never.gguf --type q3_x", "run demo-vl -p x --kv-type q1"}) {
    const Output output = heirloom(arguments);
    EXPECT_EQ(output.code, 2) << arguments;
    EXPECT_EQ(output.out, "") << arguments;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << arguments << "\n" << output.err;
  }
}

// Westmere has SSSE3 and no AVX: one instruction of a higher tier anywhere on the way ends the program.
TEST(cli, run_answers_on_a_cpu_of_2010) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the emulator backs a sanitizer's terabytes of shadow with real memory";
#endif
  if (std::system("command -v qemu-x86_64 >/dev/null") != 0) GTEST_SKIP() << "not installed: qemu-x86_64 (package qemu-user)";
  const Output output = heirloom("run demo-moe --threads 1 -p 'What is 34 + 58?'", "", "qemu-x86_64 -cpu Westmere ");
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.err, HasSubstr("cpu ssse3"));
  EXPECT_EQ(output.out, "34 + 58 = 92.\n");
}

TEST(cli, run_describes_the_bundled_picture_on_stdout_alone) {
  const Output output = heirloom("run demo-vl --image " + quoted(kSource / "examples/shapes.png") + " -p 'Describe the picture.'");
  EXPECT_EQ(output.code, 0);
  EXPECT_EQ(output.out, "A purple triangle and a pink triangle on a yellow background.\n");
}

TEST(cli, run_json_has_the_documented_fields) {
  const Output output = heirloom("run demo-moe -p 'What is 34 + 58?' --json --log-level off");
  ASSERT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(output.err, "");
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json["text"], "34 + 58 = 92.");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["prompt_tokens"], 24);
  EXPECT_EQ(json["cached_tokens"], 0);
  for (const char* key : {"load_ms", "image_ms", "prefill_ms", "prefill_tok_s", "decode_ms", "decode_tok_s"}) {
    EXPECT_TRUE(json["timings"].contains(key)) << key;
  }
  EXPECT_TRUE(json.contains("placement"));
  EXPECT_TRUE(json["token_ids"].is_array());
}

TEST(cli, run_takes_a_conversation_with_tools_from_a_file) {
  const TemporaryFile file("conversation.json", R"({"messages": [{"role": "user", "content": "Hello!"}], "enable_thinking": false})");
  const Output output = heirloom("run demo-moe --messages " + quoted(file.path));
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_NE(output.out, "");
  const TemporaryFile broken("broken.json", R"({"messages": [)");
  EXPECT_EQ(heirloom("run demo-moe --messages " + quoted(broken.path)).code, 3);
}

TEST(cli, answer_length_is_limited_by_n_and_a_stop_text) {
  const auto cut = nlohmann::json::parse(heirloom("run demo-moe -p 'What is 34 + 58?' -n 3 --json").out);
  EXPECT_EQ(cut["finish_reason"], "length");
  EXPECT_EQ(cut["token_ids"].size(), 3u);
  const auto stopped = nlohmann::json::parse(heirloom("run demo-moe -p 'What is 34 + 58?' --stop ' =' --json").out);
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["text"], "34 + 58");
}

TEST(cli, a_seed_makes_a_sampled_run_repeatable) {
  const std::string arguments = "run demo-moe -p 'Hello!' --temperature 3 --seed 11 --json";
  const auto first = nlohmann::json::parse(heirloom(arguments).out), second = nlohmann::json::parse(heirloom(arguments).out);
  EXPECT_EQ(first["token_ids"], second["token_ids"]);
}

TEST(cli, pictures_that_cannot_be_used_are_refused_by_name) {
  const TemporaryFile text("note.png", "this is no picture");
  for (const std::string& path : {text.path.string(), std::string("/nonexistent/picture.png"), fs::temp_directory_path().string()}) {
    const Output output = heirloom("run demo-vl -p x --image '" + path + "'");
    EXPECT_EQ(output.code, 3) << path << output.err;
    EXPECT_EQ(output.out, "");
    EXPECT_THAT(output.err, HasSubstr(fs::path(path).filename().string()));
  }
}

TEST(cli, a_picture_for_a_text_model_is_refused) {
  const TemporaryFile file("text-only.gguf");
  ASSERT_EQ(heirloom("quantize demo-vl " + quoted(file.path) + " --type q8_0 --text-only").code, 0);
  const Output output = heirloom("run " + quoted(file.path) + " -p x --image " + quoted(kSource / "examples/shapes.png"));
  EXPECT_EQ(output.code, 2) << output.err;
  EXPECT_THAT(output.err, HasSubstr("picture"));
}

TEST(cli, a_prompt_beyond_the_context_does_not_fit) {
  const Output output = heirloom("run demo-moe --ctx 16 -p 'What is 34 + 58?'");
  EXPECT_EQ(output.code, 4) << output.err;
  EXPECT_THAT(output.err, HasSubstr("16"));
  EXPECT_THAT(output.err, HasSubstr("24"));
}

TEST(cli, a_missing_gpu_is_exit_code_5_when_it_was_asked_for) {
  const Output output = heirloom("run demo-moe -p x --device cuda:63");
  EXPECT_EQ(output.code, 5) << output.err;
}

TEST(cli, every_tier_of_this_machine_gives_the_same_greedy_answer) {
  const std::string question = "run demo-vl --image " + quoted(kSource / "examples/shapes.png") + " -p 'Describe the picture.' --cpu-isa ";
  for (const char* tier : {"scalar", "ssse3", "avx2", "avx512", "avx512_vnni", "amx"}) {
    const Output output = heirloom(question + tier);
    if (output.code == 5) continue;  // this CPU lacks it, and says so
    EXPECT_EQ(output.code, 0) << tier << output.err;
    EXPECT_EQ(output.out, "A purple triangle and a pink triangle on a yellow background.\n") << tier;
  }
}

TEST(cli, tokenize_gives_ids_and_pieces) {
  const auto json = nlohmann::json::parse(heirloom("tokenize demo-vl -p 'Hello <|im_end|>' --json").out);
  EXPECT_EQ(json["ids"].size(), json["pieces"].size());
  EXPECT_EQ(json["pieces"].back(), "<|im_end|>");
  const auto from_stdin = nlohmann::json::parse(heirloom("tokenize demo-vl --json", "Hello <|im_end|>").out);
  EXPECT_EQ(json, from_stdin);
  const auto plain = nlohmann::json::parse(heirloom("tokenize demo-vl --as-text -p '<|im_end|>' --json").out);
  EXPECT_GT(plain["ids"].size(), 1u);
}

TEST(cli, info_describes_a_file_without_loading_it) {
  const auto json = nlohmann::json::parse(heirloom("info demo-moe --json").out);
  EXPECT_EQ(json["architecture"], "qwen3_5_moe");
  EXPECT_EQ(json["parameters"], 16337840);
  EXPECT_EQ(json["experts"]["count"], 32);
  EXPECT_THAT(heirloom("info demo-moe").out, HasSubstr("qwen3_5_moe"));
}

TEST(cli, a_quantised_model_answers_and_a_broken_one_leaves_no_output) {
  const TemporaryFile file("q4.gguf"), truncated("truncated.gguf", read_all(kSource / "models/demo-vl.gguf").substr(0, 5 << 20)), never("never.gguf");
  const Output made = heirloom("quantize demo-moe " + quoted(file.path) + " --type q4_k");
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("quantised already"));
  EXPECT_THAT(made.err, HasSubstr("q4_k -> q5_0"));
  EXPECT_EQ(heirloom("run " + quoted(file.path) + " -p 'What is the capital of France?'").code, 0);
  const Output broken = heirloom("quantize " + quoted(truncated.path) + " " + quoted(never.path) + " --type f16");
  EXPECT_EQ(broken.code, 3);
  EXPECT_THAT(broken.err, HasSubstr("past the end"));
  EXPECT_FALSE(fs::exists(never.path));
}

TEST(cli, prune_reports_layers_and_its_file_answers) {
  const TemporaryFile file("pruned.gguf"), few("few.jsonl", read_all(kSource / "models/calibration/text.jsonl").substr(0, 20000));
  std::string lines = read_all(few.path);
  std::ofstream(few.path, std::ios::binary) << lines.substr(0, lines.rfind('\n') + 1);
  const Output made = heirloom("prune demo-moe " + quoted(file.path) + " --keep 0.875 --calibration " + quoted(few.path) + " --json");
  ASSERT_EQ(made.code, 0) << made.err;
  const auto report = nlohmann::json::parse(made.out);
  EXPECT_EQ(report["experts"], 32);
  EXPECT_EQ(report["kept"], 28);
  EXPECT_EQ(report["output_bytes"], fs::file_size(file.path));
  EXPECT_GT(report["calibration"]["tokens"], 1000);
  ASSERT_EQ(report["layers"].size(), 8u);
  for (const auto& layer : report["layers"]) {
    EXPECT_EQ(layer["kept"].size(), 28u);
    EXPECT_GT(layer["saliency_share"], 0.875);  // the best 28 hold more than 28 average ones
    EXPECT_LT(layer["saliency_share"], 1.0);
  }
  EXPECT_EQ(nlohmann::json::parse(heirloom("info " + quoted(file.path) + " --json").out)["experts"]["count"], 28);
  EXPECT_EQ(heirloom("run " + quoted(file.path) + " -p 'What is 34 + 58?'").out, "34 + 58 = 92.\n");
}

TEST(cli, prune_says_in_one_line_what_is_wrong_and_writes_nothing) {
  const TemporaryFile never("never.gguf"), truncated("truncated-moe.gguf", read_all(kSource / "models/demo-moe.gguf").substr(0, 5 << 20)),
      broken("broken.jsonl", "{\"messages\": [\n"), nobody("nobody.jsonl", "{\"question\": 1}\n"), empty("empty.txt", " \n"),
      robot("robot.jsonl", "{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}\n"),
      lost("lost.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"image\": \"lost.png\"}]}]}\n");
  const std::string out = " " + quoted(never.path);
  const struct {
    std::string arguments;
    int code;
    const char* part;
  } cases[] = {
      {"demo-vl" + out, 2, "dense model"},
      {"demo-moe" + out + " --keep 0.1", 2, "the router picks 4"},
      {"demo-moe" + out + " --keep 0", 2, "above 0"},
      {"demo-moe" + out + " --keep half", 2, "--keep"},
      {"demo-moe" + out + " --type q9_9", 2, "q9_9"},
      {"demo-moe" + out + " --method best", 2, "--method"},
      {"demo-moe /nonexistent/folder/x.gguf --method random", 2, "cannot create"},
      {quoted(truncated.path) + out, 3, "past the end"},
      {"demo-moe" + out + " --calibration " + quoted(broken.path), 3, ":1: invalid JSON"},
      {"demo-moe" + out + " --calibration " + quoted(nobody.path), 3, "messages"},
      {"demo-moe" + out + " --calibration " + quoted(robot.path), 2, "calibration prompt 1"},
      {"demo-moe" + out + " --calibration " + quoted(lost.path), 3, "lost.png"},
      {"demo-moe" + out + " --calibration " + quoted(empty.path), 3, "is empty"},
      {"demo-moe" + out + " --calibration /nonexistent.jsonl", 3, "cannot open"},
  };
  for (const auto& each : cases) {
    const Output output = heirloom("prune " + each.arguments + " --log-level error");
    EXPECT_EQ(output.code, each.code) << each.arguments << output.err;
    EXPECT_EQ(output.out, "") << each.arguments;
    EXPECT_THAT(output.err, HasSubstr(each.part)) << each.arguments;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << each.arguments << "\n" << output.err;
    EXPECT_FALSE(fs::exists(never.path)) << each.arguments;
  }
}

TEST(cli, chat_answers_lines_from_a_pipe_and_survives_bad_commands) {
  const Output output = heirloom("chat demo-moe", "What is 34 + 58?\n/image /nonexistent.png\n/dance\n/help\n/undo\n/quit\n");
  EXPECT_EQ(output.code, 0);
  EXPECT_EQ(output.out, "34 + 58 = 92.\n");
  EXPECT_THAT(output.err, HasSubstr("/nonexistent.png"));
  EXPECT_THAT(output.err, HasSubstr("/dance: unknown command"));
  EXPECT_THAT(output.err, HasSubstr("/image FILE"));
}

TEST(cli, chat_keeps_a_conversation_in_a_file_and_goes_on_with_it) {
  const TemporaryFile session("session.json");
  EXPECT_EQ(heirloom("chat demo-moe --session " + quoted(session.path), "What is 34 + 58?\n").code, 0);
  const auto kept = nlohmann::json::parse(read_all(session.path));
  EXPECT_EQ(kept["messages"].size(), 2u);
  const Output again = heirloom("chat demo-moe --session " + quoted(session.path), "What is 10 + 11?\n");
  EXPECT_THAT(again.out, HasSubstr("21"));
  EXPECT_EQ(nlohmann::json::parse(read_all(session.path))["messages"].size(), 4u);
  fs::remove_all(session.path.string() + ".cache");
}

TEST(cli, eval_counts_right_answers_by_task) {
  const TemporaryFile items("items.jsonl",
                            "{\"id\": \"a\", \"task\": \"add\", \"messages\": [{\"role\": \"user\", \"content\": \"What is 34 + 58?\"}], \"key\": \"92\"}\n"
                            "{\"id\": \"b\", \"task\": \"add\", \"messages\": [{\"role\": \"user\", \"content\": \"What is 34 + 58?\"}], \"key\": \"93\"}\n");
  const Output output = heirloom("eval demo-moe " + quoted(items.path) + " --json");
  ASSERT_EQ(output.code, 0) << output.err;
  const std::string last = output.out.substr(output.out.rfind('\n', output.out.size() - 2) + 1);
  const auto summary = nlohmann::json::parse(last)["summary"];
  EXPECT_EQ(summary["add"]["n"], 2);
  EXPECT_EQ(summary["add"]["right"], 1);
  EXPECT_THAT(heirloom("eval demo-moe " + quoted(items.path)).out, HasSubstr("1/2"));
}

TEST(cli, verify_names_a_missing_dump_and_a_foreign_file) {
  EXPECT_EQ(heirloom("verify demo-vl --reference /nonexistent").code, 3);
  EXPECT_EQ(heirloom("verify demo-vl --reference " + quoted(kSource / "README.md")).code, 3);
}

}  // namespace
}  // namespace heirloom::test

// String operations with Python's meaning on UTF-8: white space, code-point indexing, case. They work on bytes or on
// tainted text and know nothing of the template language.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/tainted_text.h"

namespace heirloom::text::jinja {

/// str.isspace() of one character.
bool is_python_space(char32_t c) noexcept;

std::string_view python_rstrip(std::string_view text) noexcept;

/// strip/lstrip/rstrip: white space, or the characters of `chars` if it is given.
Text strip(const Text& text, bool left, bool right, const std::string* chars);

/// Byte offset of code point `index` (<= number of code points).
std::size_t byte_offset(std::string_view text, std::size_t index) noexcept;

enum class Case { lower, upper, title, capitalize };
Text change_case(const Text& text, Case wanted);
bool is_letter(char32_t c) noexcept;
bool is_word(char32_t c) noexcept;  // \w of Python's regular expressions
bool is_upper(char32_t c) noexcept;
bool is_lower(char32_t c) noexcept;

/// str.split(): separator empty = runs of white space. max_splits < 0: no limit.
std::vector<Text> split(const Text& text, std::string_view separator, std::int64_t max_splits, bool from_right);
std::vector<Text> split_lines(const Text& text, bool keep_ends);

/// str.replace(); count < 0: all.
Text replace(const Text& text, std::string_view from, const Text& to, std::int64_t count);

}  // namespace heirloom::text::jinja

// A request that cannot be served: HTTP status plus what OpenAI's and Anthropic's error objects hold.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "heirloom/engine.h"
#include "server/http_types.h"

namespace heirloom::server {

class ApiError : public std::runtime_error {
 public:
  ApiError(int status_in, std::string message, std::string param_in = {}, std::string code_in = {})
      : std::runtime_error(std::move(message)), status(status_in), param(std::move(param_in)), code(std::move(code_in)) {}

  int status;
  std::string param;  // path of the field at fault ("messages[2].content"), if one is
  std::string code;   // machine-readable ("context_length_exceeded"), if there is one
};

/// 400 for a field of the request.
template <typename... Args>
[[noreturn]] void bad_field(std::string path, fmt::format_string<Args...> format, Args&&... args) {
  std::string message = path + ": " + fmt::format(format, std::forward<Args>(args)...);
  throw ApiError(400, std::move(message), std::move(path));
}

enum class ErrorStyle { openai, anthropic };

/// The body of an error response, or of an error event inside a stream.
Json error_body(const ApiError& error, ErrorStyle style);
HttpResponse error_response(const ApiError& error, ErrorStyle style);

/// HTTP status of an engine failure; the one table.
int http_status(ErrorKind kind);
/// An engine's Error as the client sees it. Internal failures keep their message: it holds no prompt and no key.
ApiError to_api_error(const Error& error);

HttpResponse json_response(const Json& body, int status = 200);

}  // namespace heirloom::server

#include "server/api_error.h"

namespace heirloom::server {
namespace {

std::string openai_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

Json error_body(const ApiError& error, ErrorStyle style) {
  if (style == ErrorStyle::anthropic) {
    return {{"type", "error"}, {"error", {{"type", anthropic_type(error.status)}, {"message", error.what()}}}};
  }
  return {{"error",
           {{"message", error.what()},
            {"type", openai_type(error.status)},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

HttpResponse error_response(const ApiError& error, ErrorStyle style) {
  HttpResponse response = json_response(error_body(error, style), error.status);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

int http_status(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage: return 400;
    case ErrorKind::bad_file: return 400;      // of a request: a picture that cannot be decoded
    case ErrorKind::does_not_fit: return 400;
    case ErrorKind::cancelled: return 503;     // by the server's own shutdown; a client's cancel has no reader
    case ErrorKind::device: return 500;
    case ErrorKind::internal: return 500;
  }
  return 500;
}

ApiError to_api_error(const Error& error) { return ApiError(http_status(error.kind()), error.what()); }

HttpResponse json_response(const Json& body, int status) {
  // A broken character (only possible in echoed text) is replaced rather than thrown over.
  return {status,
          {{"Content-Type", "application/json"}},
          body.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace heirloom::server

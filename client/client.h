#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cancellation.h"
#include "client/errors.h"
#include "client/options.h"
#include "client/session.h"
#include "client/step_stream.h"
#include "latchd/v1/decode.pb.h"

// START HERE. The C++ client library of latchd: one class, one method an RPC. Requests and
// responses are the messages of proto/latchd/v1/decode.proto, whose comments say what each field
// means.
//
//   auto client = Client::Connect("127.0.0.1:7878");
//   v1::GenerateRequest request;
//   request.set_text("Once upon a time");
//   auto finish = (*client)->Generate(request, [](const v1::GenerateResponse::Token& token) {
//     std::cout << token.text() << std::flush;
//     return true;
//   });

namespace latchd::client {

struct CallOptions {
  std::optional<absl::Duration> timeout;  // unset: ClientOptions::work_timeout
  Cancellation* cancellation = nullptr;   // not owned; outlives the call
};

// Sees each token as it comes; false cancels the generation.
using TokenCallback = std::function<bool(const v1::GenerateResponse::Token&)>;

// Thread-safe: any number of threads may call at once. Every call blocks. Errors have the server's
// code and message (DESIGN: INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION with a violation,
// RESOURCE_EXHAUSTED, ABORTED, UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED, INTERNAL); see errors.h
// for what they carry. Calls marked (retried) follow ClientOptions::retry; all others are sent
// once.
class Client {
 public:
  // Connects before it returns. UNAVAILABLE: nobody listens there, or not within connect_timeout.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address,
                                                         const ClientOptions& options = {});

  absl::StatusOr<v1::GetModelResponse> GetModel();    // (retried)
  absl::StatusOr<v1::GetStatusResponse> GetStatus();  // (retried)

  // The handle closes the session when it goes. Capacity 0: the longest that the daemon allows.
  absl::StatusOr<Session> OpenSession(const v1::OpenSessionRequest& request = {});
  // A handle that owns the session `session_id`, opened by whomever.
  Session Adopt(uint64_t session_id);
  absl::StatusOr<v1::Session> GetSession(uint64_t session_id);                       // (retried)
  absl::StatusOr<std::vector<v1::Session>> ListSessions();                           // (retried)
  absl::StatusOr<v1::Session> ClearLatch(uint64_t session_id);                       // (retried)
  absl::StatusOr<v1::Session> Truncate(uint64_t session_id, int64_t length_tokens);  // (retried)
  absl::StatusOr<v1::Session> Reset(uint64_t session_id);                            // (retried)
  absl::Status CloseSession(uint64_t session_id);                                    // (retried)

  absl::StatusOr<v1::PrefillResponse> Prefill(const v1::PrefillRequest& request,
                                              const CallOptions& options = {});
  // Step and StepForced of the stream work on `session_id`; Send may name any. `cancellation` may
  // be null.
  std::unique_ptr<StepStream> OpenStepStream(uint64_t session_id = 0,
                                             Cancellation* cancellation = nullptr);
  // Streams tokens to `on_token` (may be null) on this thread and returns the last message. A
  // violation is not an error here: the finish says FINISH_REASON_VIOLATION and carries it.
  // CANCELLED when the callback or `options` cancelled.
  absl::StatusOr<v1::GenerateResponse::Finish> Generate(const v1::GenerateRequest& request,
                                                        const TokenCallback& on_token,
                                                        const CallOptions& options = {});

  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);  // (retried)
  absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>& token_ids,
                                         bool skip_special_tokens = false);  // (retried)
  absl::StatusOr<v1::ApplyChatTemplateResponse> ApplyChatTemplate(
      const std::vector<v1::ChatMessage>& messages);  // (retried)

  // UNIMPLEMENTED unless the daemon runs with --enable-fault-injection.
  absl::Status InjectFault(const v1::InjectFaultRequest& request);
  absl::StatusOr<v1::GetKvDigestResponse> GetKvDigest(uint64_t session_id);

 private:
  explicit Client(std::shared_ptr<Connection> connection);

  const std::shared_ptr<Connection> connection_;
};

}  // namespace latchd::client

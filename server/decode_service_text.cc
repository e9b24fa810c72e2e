// The text calls of DecodeService: no session, no device, only the tokenizer.

#include "absl/strings/str_cat.h"
#include "server/decode_service.h"
#include "server/request_check.h"
#include "server/utf8.h"

namespace latchd {
namespace {

// gRPC would refuse to send it too, but without a word about what to do.
absl::Status CheckFits(const google::protobuf::Message& response, int64_t max_message_bytes) {
  const size_t bytes = response.ByteSizeLong();
  if (bytes <= static_cast<size_t>(max_message_bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("response: expected at most ", max_message_bytes,
                                                   " bytes (--max-message-bytes), got ", bytes,
                                                   ": send it in parts"));
}

}  // namespace

grpc::ServerUnaryReactor* DecodeService::Tokenize(grpc::CallbackServerContext* rpc,
                                                  const v1::TokenizeRequest* request,
                                                  v1::TokenizeResponse* response) {
  return Unary(rpc, "Tokenize", Where::kWorker, [=, this]() -> absl::Status {
    const Tokenizer* tokenizer = context_.engine.tokenizer();
    if (tokenizer == nullptr) return NoTokenizerError();
    absl::Status utf8 = CheckUtf8(request->text(), "text");
    if (!utf8.ok()) return utf8;
    EncodeOptions options;
    options.add_special_tokens =
        !request->has_add_special_tokens() || request->add_special_tokens();
    auto ids = tokenizer->Encode(request->text(), options);
    if (!ids.ok()) return ids.status();
    response->mutable_token_ids()->Add(ids->begin(), ids->end());
    if (request->with_pieces()) {
      for (const int32_t id : *ids) response->add_pieces(tokenizer->TokenBytes(id));
    }
    return CheckFits(*response, context_.max_message_bytes);
  });
}

grpc::ServerUnaryReactor* DecodeService::Detokenize(grpc::CallbackServerContext* rpc,
                                                    const v1::DetokenizeRequest* request,
                                                    v1::DetokenizeResponse* response) {
  return Unary(rpc, "Detokenize", Where::kWorker, [=, this]() -> absl::Status {
    const Tokenizer* tokenizer = context_.engine.tokenizer();
    if (tokenizer == nullptr) return NoTokenizerError();
    // The tokenizer's own vocabulary: a model's may be padded beyond it.
    absl::Status status = CheckTokenIds(request->token_ids(), tokenizer->vocab_size(), "token_ids");
    if (!status.ok()) return status;
    const std::vector<int32_t> ids(request->token_ids().begin(), request->token_ids().end());
    auto text = tokenizer->Decode(ids, request->skip_special_tokens());
    if (!text.ok()) return text.status();
    response->set_text(ToValidUtf8(*text));
    return CheckFits(*response, context_.max_message_bytes);
  });
}

grpc::ServerUnaryReactor* DecodeService::ApplyChatTemplate(
    grpc::CallbackServerContext* rpc, const v1::ApplyChatTemplateRequest* request,
    v1::ApplyChatTemplateResponse* response) {
  return Unary(rpc, "ApplyChatTemplate", Where::kWorker, [=, this]() -> absl::Status {
    const Tokenizer* tokenizer = context_.engine.tokenizer();
    if (tokenizer == nullptr) return NoTokenizerError();
    auto messages = CheckChat(*request);
    if (!messages.ok()) return messages.status();
    auto text = latchd::ApplyChatTemplate(*tokenizer, *messages);
    if (!text.ok()) return text.status();
    // The template's text already holds its special tokens, BOS included.
    EncodeOptions options;
    options.add_special_tokens = false;
    auto ids = tokenizer->Encode(*text, options);
    if (!ids.ok()) return ids.status();
    response->set_text(*text);
    response->mutable_token_ids()->Add(ids->begin(), ids->end());
    return CheckFits(*response, context_.max_message_bytes);
  });
}

}  // namespace latchd

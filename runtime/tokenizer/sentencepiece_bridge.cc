#include "runtime/tokenizer/sentencepiece_bridge.h"

#include <sentencepiece_processor.h>

namespace latchd {

struct SentencePieceBridge::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

namespace {

std::string Message(const sentencepiece::util::Status& status) {
  if (status.ok()) return {};
  const std::string message(status.error_message());
  return message.empty() ? "unknown error" : message;
}

}  // namespace

SentencePieceBridge::SentencePieceBridge() : impl_(std::make_unique<Impl>()) {}
SentencePieceBridge::~SentencePieceBridge() = default;

std::string SentencePieceBridge::Load(const std::string& path) {
  return Message(impl_->processor.Load(path));
}

std::string SentencePieceBridge::Encode(std::string_view text, std::vector<int>* ids) const {
  return Message(impl_->processor.Encode(text, ids));
}

int SentencePieceBridge::size() const { return impl_->processor.GetPieceSize(); }
std::string SentencePieceBridge::Piece(int id) const { return impl_->processor.IdToPiece(id); }
bool SentencePieceBridge::IsControlOrUnknown(int id) const {
  return impl_->processor.IsControl(id) || impl_->processor.IsUnknown(id);
}
int SentencePieceBridge::bos_id() const { return impl_->processor.bos_id(); }
int SentencePieceBridge::eos_id() const { return impl_->processor.eos_id(); }

}  // namespace latchd

#pragma once

#include "runtime/tokenizer/json_node.h"
#include "runtime/tokenizer/text_tokenizer.h"

// The sections of tokenizer.json that are lists of steps. Errors go to the node's document.

namespace latchd {

void ReadNormalizer(const JsonNode& node, Normalizer* out);
void ReadPreTokenizer(const JsonNode& node, PreTokenizer* out);
void ReadDecoder(const JsonNode& node, TokenDecoder* out);

// Calls `read` for `node`, or, when it is a Sequence, for each member of its field `list`, in order
// and to any depth up to a limit.
template <typename Read>
void ForEachStep(const JsonNode& node, const char* list, const Read& read, int depth = 0) {
  constexpr int kMaxDepth = 16;
  if (depth > kMaxDepth) return node.Expected("at most 16 levels of Sequence");
  if (node["type"].String() != "Sequence") return read(node);
  for (const JsonNode& member : node[list].Array()) ForEachStep(member, list, read, depth + 1);
}

}  // namespace latchd

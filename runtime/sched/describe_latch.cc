#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/engine.h"

namespace latchd {

// Declared in engine.h, because server/ sees nothing else; here, because the step loop calls it.
std::string DescribeLatch(const Latch& latch) {
  if (latch.mask == 0) return "";
  std::vector<std::string> names;
  std::string sentence = "unknown invariant";
  for (const InvariantInfo& invariant : kInvariants) {
    if (latch.mask & invariant.bit) names.emplace_back(invariant.name);
    if (latch.first == invariant.bit) sentence = std::string(invariant.sentence);
  }
  return absl::StrCat(absl::StrJoin(names, "+"), ": ", sentence, " (value ", latch.value,
                      ", limit ", latch.limit, "; layer ", latch.layer, ", row ", latch.row,
                      ", step ", latch.step, ")");
}

}  // namespace latchd

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace latchd {

// A whole file mapped read-only; unmapped on destruction. Thread-safe. Someone who truncates the
// file while it is mapped makes later reads fault (SIGBUS), as with every mapped file: replace
// model files by rename.
class MappedFile {
 public:
  // NOT_FOUND when there is no such file; PERMISSION_DENIED; INVALID_ARGUMENT for a directory, a
  // device or an empty file. Follows symbolic links.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

  // Tells the kernel that `part` of bytes() is about to be read.
  void WillNeed(std::string_view part) const;
  // Takes the pages read so far out of this process's memory; the page cache keeps them.
  void Release() const;

 private:
  MappedFile(std::string path, void* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  void* data_;
  size_t size_;
};

// Reads a small text file whole. Errors as MappedFile::Open, and INVALID_ARGUMENT above
// `max_bytes`; an empty file is an empty string.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace latchd

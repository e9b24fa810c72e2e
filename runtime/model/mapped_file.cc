#include "runtime/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "runtime/model/file_error.h"

namespace latchd {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// NOT_FOUND, PERMISSION_DENIED and RESOURCE_EXHAUSTED as they are; the rest (a loop of links, a
// file as a folder, a name too long) is a bad path: INVALID_ARGUMENT.
absl::Status SystemError(const std::string& path, const char* what) {
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", what));
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted: return status;
    default: return absl::InvalidArgumentError(status.message());
  }
}

// Size of a regular file. O_NONBLOCK at open keeps a FIFO from blocking until fstat refuses it.
absl::StatusOr<size_t> RegularFileSize(const std::string& path, int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError(path, "cannot read the file's attributes");
  if (S_ISDIR(info.st_mode)) return Malformed(path, "file", "a regular file", "a directory");
  if (!S_ISREG(info.st_mode)) return Malformed(path, "file", "a regular file", "a special file");
  return static_cast<size_t>(info.st_size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return SystemError(path, "cannot open");
  absl::StatusOr<size_t> size = RegularFileSize(path, fd.get());
  if (!size.ok()) return size.status();
  if (*size == 0) return Malformed(path, "file", "a model file", "an empty file");
  void* data = mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError(path, "cannot map");
  return std::unique_ptr<MappedFile>(new MappedFile(path, data, *size));
}

MappedFile::~MappedFile() { munmap(data_, size_); }

void MappedFile::WillNeed(std::string_view part) const {
  // madvise wants the begin of a page.
  static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data()) + part.size();
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

void MappedFile::Release() const { madvise(data_, size_, MADV_DONTNEED); }

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return SystemError(path, "cannot open");
  absl::StatusOr<size_t> size = RegularFileSize(path, fd.get());
  if (!size.ok()) return size.status();
  if (*size > max_bytes) {
    return Malformed(path, "file size", absl::StrCat("at most ", max_bytes, " bytes"),
                     absl::StrCat(*size));
  }
  std::string text(*size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path, "cannot read");
    if (n == 0) break;  // shortened since fstat
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

}  // namespace latchd

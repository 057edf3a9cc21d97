// Ranks of MPI for attn/dist.hpp. Header-only, compiled with the program's own mpi.h, as handles of
// MPI have another type in each implementation: the library itself knows no MPI.
//
//   MPI_Init(&argc, &argv);
//   attn::dist::Group group = attn::dist::mpi(MPI_COMM_WORLD);
//
// Messages of a call go by MPI_Isend and MPI_Irecv in a communicator of the group's own. MPI is
// called by the thread that calls attn alone. A rank that is silent is given up by its time-out, as
// MPI does not tell who has gone; what a launcher does when a process dies is its own: mpirun ends
// all others. Programs run with `mpirun -n 4 PROGRAM`, one or several ranks a machine.
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attn/dist.hpp"
#include "attn/error.hpp"

namespace attn::dist {

class MpiEngine : public Engine {
 public:
  // Collective over `of`, of which it takes a copy.
  explicit MpiEngine(MPI_Comm of) {
    check(MPI_Comm_dup(of, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;
  ~MpiEngine() override {
    int is_finalized = 0;
    MPI_Finalized(&is_finalized);
    // A group that failed may have messages under way, which freeing it would wait for.
    if (is_finalized == 0 && failure_.empty()) MPI_Comm_free(&comm_);
  }

  std::string_view name() const noexcept override { return "mpi"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives,
                std::chrono::milliseconds timeout) override {
    if (!failure_.empty() || failure_arrived()) refuse();
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::vector<Piece> pieces;
    for (const Receive& r : receives) {
      in_pieces(r.bytes, [&](std::size_t begin, int bytes) {
        Piece& piece = pieces.emplace_back(Piece{r.from, bytes, true});
        check(MPI_Irecv(static_cast<char*>(r.data) + begin, bytes, MPI_BYTE, r.from, kMessage,
                        comm_, &piece.request),
              "MPI_Irecv");
      });
    }
    for (const Send& s : sends) {
      in_pieces(s.bytes, [&](std::size_t begin, int bytes) {
        Piece& piece = pieces.emplace_back(Piece{s.to, bytes, false});
        check(MPI_Isend(static_cast<const char*>(s.data) + begin, bytes, MPI_BYTE, s.to, kMessage,
                        comm_, &piece.request),
              "MPI_Isend");
      });
    }
    try {
      finish(pieces, deadline, timeout);
    } catch (...) {
      give_up(pieces);
      for (const Send& s : sends) kept_.push_back(s.owner);
      for (const Receive& r : receives) kept_.push_back(r.owner);
      throw;
    }
  }

  void fail(const std::string& cause) noexcept override {
    if (!failure_.empty()) return;
    try {
      failure_ = cause.empty() ? "a rank failed" : cause;
      Text& text = told_.emplace_back();
      text.fill('\0');
      std::memcpy(text.data(), failure_.data(), std::min(failure_.size(), text.size() - 1));
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_CHAR, r, kFailure, comm_,
                  &request);
        if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
      }
    } catch (...) {  // no memory for the text: the others' time-outs tell them
    }
  }

 private:
  static constexpr int kMessage = 1, kFailure = 2;             // tags
  static constexpr std::size_t kPiece = std::size_t{1} << 30;  // counts of MPI are of type int
  using Text = std::array<char, 512>;
  struct Piece {
    int peer;
    int bytes;
    bool is_received;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  template <class Visit>
  static void in_pieces(std::size_t bytes, const Visit& visit) {
    for (std::size_t begin = 0; begin < bytes || begin == 0; begin += kPiece) {
      visit(begin, static_cast<int>(std::min(kPiece, bytes - begin)));
    }
  }

  void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    fail(std::string(call) + " on rank " + std::to_string(rank_) + ": " + text);
    refuse();
  }
  [[noreturn]] void refuse() const { throw Error(ErrorCode::unavailable, failure_); }

  // Whether another rank has told that it failed.
  bool failure_arrived() {
    int has_come = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kFailure, comm_, &has_come, &status), "MPI_Iprobe");
    if (has_come == 0) return false;
    Text text;
    MPI_Recv(text.data(), static_cast<int>(text.size()), MPI_CHAR, status.MPI_SOURCE, kFailure,
             comm_, MPI_STATUS_IGNORE);
    failure_ = text.data();
    return true;
  }

  void finish(std::vector<Piece>& pieces, std::chrono::steady_clock::time_point deadline,
              std::chrono::milliseconds timeout) {
    for (;;) {
      const Piece* missing = nullptr;
      for (Piece& piece : pieces) {
        if (piece.request == MPI_REQUEST_NULL) continue;
        int is_done = 0;
        MPI_Status status;
        check(MPI_Test(&piece.request, &is_done, &status), "MPI_Test");
        if (is_done == 0) {
          if (missing == nullptr) missing = &piece;
        } else if (piece.is_received) {
          check_size(piece, status);
        }
      }
      if (missing == nullptr) return;
      if (failure_arrived()) refuse();
      if (std::chrono::steady_clock::now() >= deadline) {
        fail("rank " + std::to_string(missing->peer) + " did not come within " +
             std::to_string(timeout.count()) + " ms, rank " + std::to_string(rank_) +
             " waits for it");
        refuse();
      }
      std::this_thread::yield();  // several ranks may share a core
    }
  }

  void check_size(const Piece& piece, const MPI_Status& status) {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (bytes == piece.bytes) return;
    fail("rank " + std::to_string(piece.peer) + " sent " + std::to_string(bytes) +
         " bytes where rank " + std::to_string(rank_) + " waits for " +
         std::to_string(piece.bytes));
    refuse();
  }

  // Takes back what has not begun. What is under way may never end: its memory is kept.
  static void give_up(std::vector<Piece>& pieces) {
    for (Piece& piece : pieces) {
      if (piece.request == MPI_REQUEST_NULL) continue;
      if (piece.is_received) {
        MPI_Cancel(&piece.request);
        int is_done = 0;
        MPI_Test(&piece.request, &is_done, MPI_STATUS_IGNORE);
      }
      if (piece.request != MPI_REQUEST_NULL) MPI_Request_free(&piece.request);
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::string failure_;                            // of the group, which is of no use from then on
  std::list<Text> told_;                           // failures under way to others
  std::vector<std::shared_ptr<const void>> kept_;  // messages under way when the group failed
};

// The ranks of a communicator, of which the group takes a copy. Collective.
inline Group mpi(MPI_Comm of) { return Group(std::make_shared<MpiEngine>(of)); }

}  // namespace attn::dist

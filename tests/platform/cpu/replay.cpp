// Replays calls of the native kernels (native_cases.py) on the machine it runs on and holds them to the results in the file:
// alone and on tapes, on teams of one, two and three threads, which must give the same bits. Then tests the team itself.
//
// Usage: replay LIBRARY INSTRUCTION_SET[+REST] FILE...     The last line is `N passed, N failed`.
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <string>
#include <vector>

#include "replay_team.h"
#include "simd.h"

namespace {

struct Blob {
    std::vector<char> before;  // with its pointers set
    char *memory, *at;
};
struct Check {
    int64_t dtype, blob, offset;
    double limit;
    std::vector<char> expected;
};
struct Case {
    std::string label, kernel;
    std::vector<int32_t> sizes;
    std::vector<Blob> blobs;
    std::vector<Check> checks;
    int64_t args, arg_bytes;
    std::vector<std::vector<char>> first;  // results of the first run
};

struct File {
    FILE *from;
    template <class T> T get() {
        T value;
        if (fread(&value, sizeof(T), 1, from) != 1) exit((fprintf(stderr, "the file of cases ends early\n"), 2));
        return value;
    }
    std::vector<char> bytes() {
        std::vector<char> data((size_t)get<int64_t>());
        if (!data.empty() && fread(data.data(), data.size(), 1, from) != 1) exit((fprintf(stderr, "cut off\n"), 2));
        return data;
    }
    std::string text() {
        std::vector<char> data = bytes();
        return std::string(data.begin(), data.end());
    }
    bool more() {
        int c = fgetc(from);
        if (c != EOF) ungetc(c, from);
        return c != EOF;
    }
};

// Memory that starts where it did within a cache line and ends where the allocation ends.
char *room(Blob &blob, int64_t shift) {
    size_t size = (size_t)shift + blob.before.size();
    if (posix_memalign((void **)&blob.memory, 64, size ? size : 1)) exit(2);
    return blob.memory + shift;
}

Case read_case(File &file) {
    Case c;
    c.label = file.text();
    c.kernel = file.text();
    for (int i = 0; i < HR_NUM_SIZES; i++) c.sizes.push_back(file.get<int32_t>());
    c.blobs.resize((size_t)file.get<int64_t>());
    c.args = file.get<int64_t>();
    c.arg_bytes = file.get<int64_t>();
    for (Blob &blob : c.blobs) {
        int64_t shift = file.get<int64_t>();
        blob.before = file.bytes();
        blob.at = room(blob, shift);
    }
    for (int64_t links = file.get<int64_t>(); links; links--) {
        auto blob = (size_t)file.get<int64_t>();
        int64_t offset = file.get<int64_t>();
        auto to = (size_t)file.get<int64_t>();
        char *target = c.blobs[to].at + file.get<int64_t>();
        memcpy(c.blobs[blob].before.data() + offset, &target, sizeof(target));
    }
    c.checks.resize((size_t)file.get<int64_t>());
    for (Check &check : c.checks) {
        check.dtype = file.get<int64_t>();
        check.blob = file.get<int64_t>();
        check.offset = file.get<int64_t>();
        check.limit = file.get<double>();
        check.expected = file.bytes();
    }
    return c;
}

double element(const char *p, int64_t dtype, size_t i) {
    switch (dtype) {
    case HR_F32: return loadu<float>(p + 4 * i);
    case HR_BF16: return from_bf16(loadu<uint16_t>(p + 2 * i));
    case HR_F16: return from_f16((vh){loadu<uint16_t>(p + 2 * i)})[0];
    case HR_I8: return loadu<int8_t>(p + i);
    case HR_E4M3: return from_e4m3((vu){loadu<uint8_t>(p + i)})[0];
    }
    return loadu<int32_t>(p + 4 * i);
}

// Normalised mean squared error.
double error_of(const Check &check, const char *found) {
    static const size_t ITEM[] = {4, 2, 2, 1, 1, 4};
    double wrong = 0, scale = 0;
    for (size_t i = 0; i < check.expected.size() / ITEM[check.dtype]; i++) {
        double a = element(found, check.dtype, i), b = element(check.expected.data(), check.dtype, i);
        if (isfinite(b)) scale += b * b;
        if (a != b && !(isnan(a) && isnan(b))) wrong += (a - b) * (a - b);
    }
    return wrong / (scale > 1e-30 ? scale : 1e-30);
}

struct Replay {
    Runtime lib;
    std::string isa, rest;  // rest: whose kernels serve where isa has none
    int passed = 0, failed = 0;

    void tell(bool good, const std::string &what) {
        good ? passed++ : failed++;
        if (!good) printf("FAILED %s\n", what.c_str());
    }
    hr_kernel kernel(const Case &c) {
        void *own = dlsym(lib.library, ("hr_" + c.kernel + "_" + isa).c_str());
        return (hr_kernel)(own ? own : lib.find("hr_" + c.kernel + "_" + rest));
    }

    void restore(Case &c) {
        for (Blob &blob : c.blobs) memcpy(blob.at, blob.before.data(), blob.before.size());
    }

    // Held to the file at the first run, to that run's bits later.
    void hold(Case &c, const std::string &how) {
        bool first = c.first.empty();
        for (size_t i = 0; i < c.checks.size(); i++) {
            Check &check = c.checks[i];
            const char *found = c.blobs[(size_t)check.blob].at + check.offset;
            std::string name = c.label + ", result " + std::to_string(i) + ", " + how;
            if (first) {
                double error = error_of(check, found);
                bool good = error <= check.limit;  // false for NaN
                tell(good, name + ": error " + std::to_string(error) + " above " + std::to_string(check.limit));
                c.first.emplace_back(found, found + check.expected.size());
            } else {
                tell(!memcmp(found, c.first[i].data(), c.first[i].size()), name + ": other bits");
            }
        }
    }

    void alone(std::vector<Case> &cases, int threads) {
        void *team = lib.team_new(threads, nullptr, 64 << 20, 64 << 20, 20000);
        std::string how = "alone on " + std::to_string(threads) + " threads";
        for (Case &c : cases) {
            restore(c);
            const void *args = c.blobs[(size_t)c.args].before.data();
            int32_t error = lib.wait(team, lib.submit_kernel(team, kernel(c), args, c.arg_bytes, c.sizes.data()));
            if (error) tell(false, c.label + ": the kernel reports error " + std::to_string(error));
            hold(c, how);
        }
        lib.team_free(team);
    }

    // Cases of the same sizes on one tape, which copies their inputs into place.
    void together(std::vector<Case> &cases, int threads) {
        std::map<std::vector<int32_t>, std::vector<Case *>> by_sizes;
        for (Case &c : cases) by_sizes[c.sizes].push_back(&c);
        void *team = lib.team_new(threads, nullptr, 64 << 20, 64 << 20, 0);
        std::string how = "on a tape of " + std::to_string(threads) + " threads";
        for (auto &entry : by_sizes) {
            void *tape = lib.tape_new();
            std::vector<Copy> copies;
            for (Case *c : entry.second) {
                lib.tape_add(tape, kernel(*c), c->blobs[(size_t)c->args].before.data(), c->arg_bytes);
                for (Blob &b : c->blobs) copies.push_back({b.at, b.before.data(), (int64_t)b.before.size()});
            }
            uint64_t ticket = 0;
            for (int turn = 0; turn < 2; turn++)
                ticket = lib.submit_tape(team, tape, entry.first.data(), copies.data(), (int64_t)copies.size());
            if (lib.wait(team, ticket)) tell(false, "a kernel on a tape reports an error");
            for (Case *c : entry.second) hold(*c, how);
            lib.tape_free(tape);
        }
        lib.team_free(team);
    }
};

}  // namespace

int main(int argc, char **argv) {
    void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW) : nullptr;
    if (!library) return fprintf(stderr, "replay LIBRARY INSTRUCTION_SET[+REST] FILE...: %s\n", dlerror()), 2;
    std::string isa = argv[2], rest = isa.substr(isa.find('+') + 1);
    isa = isa.substr(0, isa.find('+'));
    Replay replay{Runtime(library), isa, rest};
    if (!replay.lib.cpu_has(level_of(isa)) || !replay.lib.cpu_has(level_of(rest))) return fprintf(stderr, "%s does not run here\n", argv[2]), 2;
    for (int i = 3; i < argc; i++) {
        File file{fopen(argv[i], "rb")};
        if (!file.from || file.get<uint64_t>() != 0x3153455341435248u)
            return fprintf(stderr, "%s holds no cases\n", argv[i]), 2;
        std::vector<Case> cases;
        while (file.more()) cases.push_back(read_case(file));
        fclose(file.from);
        replay.alone(cases, 1);
        replay.alone(cases, 2);
        replay.together(cases, 3);
        for (Case &c : cases)
            for (Blob &blob : c.blobs) free(blob.memory);
    }
    test_team(replay.lib, [&](bool good, const char *what) { replay.tell(good, what); });
    printf("%d passed, %d failed\n", replay.passed, replay.failed);
    return replay.failed != 0;
}

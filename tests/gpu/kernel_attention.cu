#include "cuda/attend.h"
#include "kernel_check.h"

namespace
{

constexpr int page_tokens = 32, page_shift = 5;

struct head_shape {
    int n_heads, n_kv_heads, head_dim, v_dim, window;
    bool sinks, latent; // latent: the values are the keys' first columns
};

// Sequences with `cached` tokens from earlier steps and `fresh` ones of this step.
struct sequence_shape {
    int cached, fresh;
};

// A step and its cache, pages in random order, here and on the device.
struct paged_step {
    head_shape shape;
    std::vector<sequence_shape> sequences;
    int tokens = 0, table_width = 0, pages = 0, key_width, value_width, longest = 0;
    std::vector<int32_t> positions, sequence_of, first_row, tables;
    std::vector<uint16_t> keys, values;
    std::vector<float> q, sinks;

    paged_step(const head_shape &shape, const std::vector<sequence_shape> &sequences, uint64_t seed)
        : shape(shape), sequences(sequences)
    {
        random_numbers random(seed);
        key_width = shape.n_kv_heads * shape.head_dim;
        value_width = shape.latent ? key_width : shape.n_kv_heads * shape.v_dim;
        for (const sequence_shape &s : sequences) {
            int width = (s.cached + s.fresh + page_tokens - 1) / page_tokens + 2;
            table_width = width > table_width ? width : table_width;
            longest = s.fresh > longest ? s.fresh : longest;
        }
        for (size_t s = 0; s < sequences.size(); s++) {
            first_row.push_back(tokens);
            for (int i = 0; i < sequences[s].fresh; i++, tokens++) {
                positions.push_back(sequences[s].cached + i);
                sequence_of.push_back(static_cast<int32_t>(s));
            }
        }
        first_row.push_back(tokens);
        fill_cache(random);
        q = random.normals(static_cast<size_t>(tokens) * shape.n_heads * shape.head_dim, 2);
        for (float &x : q)
            x = nib_bf16_to_f32(nib_bf16_from_f32(x));
        sinks = random.normals(shape.n_heads, 3);
    }

    // Every token that some row sees has random contents; all else is NaN, and pages that no row sees do not exist.
    void fill_cache(random_numbers &random)
    {
        int most = table_width * static_cast<int>(sequences.size()) + 3;
        std::vector<int32_t> order(most);
        for (int i = 0; i < most; i++) {
            int j = random.below(i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        keys.assign(static_cast<size_t>(most) * page_tokens * key_width, 0x7fff);
        values.assign(static_cast<size_t>(most) * page_tokens * value_width, 0x7fff);
        tables.assign(sequences.size() * table_width, -1);
        for (size_t s = 0; s < sequences.size(); s++) {
            int end = sequences[s].cached + sequences[s].fresh, first = visible(sequences[s].cached);
            for (int p = first / page_tokens; p * page_tokens < end; p++)
                tables[s * table_width + p] = order[pages++];
            for (int t = first; t < end; t++) {
                size_t row = row_at(static_cast<int>(s), t);
                for (int i = 0; i < key_width; i++)
                    keys[row * key_width + i] = nib_bf16_from_f32(random.normal());
                for (int i = 0; i < value_width; i++)
                    values[row * value_width + i] = nib_bf16_from_f32(random.normal());
            }
        }
    }

    int visible(int position) const
    {
        return shape.window && position >= shape.window ? position - shape.window + 1 : 0;
    }

    size_t row_at(int sequence, int token) const
    {
        return static_cast<size_t>(tables[static_cast<size_t>(sequence) * table_width + token / page_tokens]) *
                   page_tokens +
               token % page_tokens;
    }

    const uint16_t *value_row(int sequence, int token) const
    {
        return shape.latent ? &keys[row_at(sequence, token) * key_width]
                            : &values[row_at(sequence, token) * value_width];
    }

    void attend(int row, int head, double *y) const
    {
        int sequence = sequence_of[row], position = positions[row], first = visible(position);
        int kv = head / (shape.n_heads / shape.n_kv_heads);
        std::vector<double> weights;
        double largest = shape.sinks ? sinks[head] : -INFINITY, sum = 0;
        for (int t = first; t <= position; t++) {
            const uint16_t *key = &keys[row_at(sequence, t) * key_width + kv * shape.head_dim];
            const float *query = &q[(static_cast<size_t>(row) * shape.n_heads + head) * shape.head_dim];
            double logit = 0;
            for (int i = 0; i < shape.head_dim; i++)
                logit += static_cast<double>(query[i]) * nib_bf16_to_f32(key[i]);
            weights.push_back(logit * scale());
            largest = fmax(largest, weights.back());
        }
        for (double &w : weights)
            sum += w = exp(w - largest);
        if (shape.sinks)
            sum += exp(sinks[head] - largest);
        for (int i = 0; i < shape.v_dim; i++)
            y[i] = 0;
        for (int t = first; t <= position; t++)
            for (int i = 0; i < shape.v_dim; i++)
                y[i] +=
                    weights[t - first] / sum * nib_bf16_to_f32(value_row(sequence, t)[kv * shape.v_dim + i]) * 1.5;
    }

    double scale() const
    {
        return static_cast<double>(static_cast<float>(1 / sqrt(shape.head_dim)));
    }

    // Rows of some heads only, where a prompt is long: `stride` rows and heads apart.
    std::vector<double> reference(int stride) const
    {
        std::vector<double> y(static_cast<size_t>(tokens) * shape.n_heads * shape.v_dim, NAN);
        for (int i = 0; i < tokens * shape.n_heads; i += stride)
            attend(i / shape.n_heads, i % shape.n_heads, &y[static_cast<size_t>(i) * shape.v_dim]);
        return y;
    }
};

struct attention_result {
    std::vector<float> y;
    std::vector<uint16_t> half;
};

// Runs the step's sequences from `first` on.
attention_result run(const paged_step &p, bool by_row, int first = 0, int count = -1)
{
    count = count < 0 ? static_cast<int>(p.sequences.size()) : count;
    int row = p.first_row[first], rows = p.first_row[first + count] - row;
    std::vector<int32_t> first_row, sequence_of,
        positions(p.positions.begin() + row, p.positions.begin() + row + rows);
    for (int s = 0; s <= count; s++)
        first_row.push_back(p.first_row[first + s] - row);
    for (int i = 0; i < rows; i++)
        sequence_of.push_back(p.sequence_of[row + i] - first);
    std::vector<int32_t> tables(p.tables.begin() + static_cast<long>(first) * p.table_width,
                                p.tables.begin() + static_cast<long>(first + count) * p.table_width);
    size_t q_width = static_cast<size_t>(p.shape.n_heads) * p.shape.head_dim,
           y_width = static_cast<size_t>(p.shape.n_heads) * p.shape.v_dim;
    std::vector<float> q(p.q.begin() + static_cast<long>(row * q_width),
                         p.q.begin() + static_cast<long>((row + rows) * q_width));
    device_array<int32_t> positions_there(positions), sequence_there(sequence_of), first_there(first_row),
        tables_there(tables);
    device_array<uint16_t> keys(p.keys), values(p.values), half(rows * y_width);
    device_array<float> q_there(q), sinks(p.sinks), y(rows * y_width);
    nib_cuda_step step = {};
    step.n_tokens = rows;
    step.n_sequences = count;
    step.page_tokens = page_tokens;
    step.page_shift = page_shift;
    step.table_width = p.table_width;
    step.reach = p.table_width * page_tokens;
    step.positions = positions_there.data();
    step.sequence_of = sequence_there.data();
    step.first_row = first_there.data();
    nib_cuda_attention call = {};
    call.y = y.data();
    call.y_half = half.data();
    call.q = q_there.data();
    call.keys = {keys.data(), p.key_width, tables_there.data()};
    call.values = p.shape.latent ? call.keys : nib_cuda_cache{values.data(), p.value_width, tables_there.data()};
    call.n_heads = p.shape.n_heads;
    call.n_kv_heads = p.shape.n_kv_heads;
    call.head_dim = p.shape.head_dim;
    call.v_dim = p.shape.v_dim;
    call.window = p.shape.window;
    call.scale = static_cast<float>(p.scale());
    call.value_scale = 1.5f;
    call.sinks = p.shape.sinks ? sinks.data() : nullptr;
    for (int i = 0; i < count; i++)
        call.longest = p.sequences[first + i].fresh > call.longest ? p.sequences[first + i].fresh : call.longest;
    call.by_row = by_row;
    attention_result result;
    for (int repeat = 0; repeat < 2; repeat++) {
        y.poison();
        half.poison();
        MUST(nib_cuda_attend_paged(nullptr, &step, &call));
        MUST(cudaDeviceSynchronize());
        std::vector<float> before = result.y;
        result.y = y.read("attention");
        expect(!repeat || same_bits(before.data(), result.y.data(), before.size()), "attention repeats its bits");
    }
    result.half = half.read("attention in bf16");
    return result;
}

double compare(const attention_result &got, const std::vector<double> &want)
{
    std::vector<float> y;
    std::vector<double> known;
    bool rounded = true;
    for (size_t i = 0; i < want.size(); i++) {
        rounded &= got.half[i] == nib_bf16_from_f32(got.y[i]);
        if (!std::isnan(want[i])) {
            y.push_back(got.y[i]);
            known.push_back(want[i]);
        }
    }
    expect(rounded, "the bf16 result is the rounded one");
    return rel_l2(y, known);
}

void check_case(const char *name, const head_shape &shape, const std::vector<sequence_shape> &sequences,
                uint64_t seed, int stride = 1)
{
    paged_step p(shape, sequences, seed);
    char what[128];
    snprintf(what, sizeof what, "attention %s: %d/%d heads of %d/%d, window %d", name, shape.n_heads,
             shape.n_kv_heads, shape.head_dim, shape.v_dim, shape.window);
    std::vector<double> want = p.reference(stride);
    attention_result all = run(p, false), by_row = run(p, true);
    expect_close(what, compare(all, want), 4e-3);
    expect_close(what, compare(by_row, want), 4e-3);
    size_t width = static_cast<size_t>(shape.n_heads) * shape.v_dim;
    bool alone = true;
    for (size_t s = 0; s < sequences.size(); s += 1 + sequences.size() / 4) {
        attention_result one = run(p, true, static_cast<int>(s), 1);
        alone &= same_bits(one.y.data(), by_row.y.data() + p.first_row[s] * width, one.y.size());
    }
    expect(alone, "row by row a sequence's attention does not depend on its neighbours");
}

void check_rotation(bool interleaved, int first, int dims)
{
    head_shape shape = {6, 2, 64, 64, 0, false, false};
    std::vector<sequence_shape> sequences = {{0, 3}, {40, 1}, {131000, 2}};
    paged_step p(shape, sequences, 5);
    random_numbers random(6);
    std::vector<float> k = random.normals(static_cast<size_t>(p.tokens) * 128), v = random.normals(k.size()),
                       inv_freq;
    for (int i = 0; i < dims / 2; i++)
        inv_freq.push_back(static_cast<float>(pow(150000, -2.0 * i / dims)));
    p.positions[1] = -1; // padding
    device_array<float> q_there(p.q), k_there(k), v_there(v), inv_there(inv_freq);
    device_array<uint16_t> keys(p.keys), values(p.values);
    device_array<int32_t> positions(p.positions), sequence_of(p.sequence_of), first_row(p.first_row),
        tables(p.tables);
    nib_cuda_step step = {};
    step.n_tokens = p.tokens;
    step.n_sequences = 3;
    step.page_tokens = page_tokens;
    step.page_shift = page_shift;
    step.table_width = p.table_width;
    step.reach = p.table_width * page_tokens;
    step.positions = positions.data();
    step.sequence_of = sequence_of.data();
    step.first_row = first_row.data();
    nib_cuda_rotation turn = {inv_there.data(), first, dims, 1.25f, interleaved};
    nib_cuda_rotate_append call = {q_there.data(),
                                   k_there.data(),
                                   v_there.data(),
                                   6,
                                   64,
                                   2,
                                   64,
                                   turn,
                                   turn,
                                   {keys.data(), 128, tables.data()},
                                   {values.data(), 128, tables.data()}};
    MUST(nib_cuda_rotate_and_append(nullptr, &step, &call));
    MUST(cudaDeviceSynchronize());
    auto rotate = [&](std::vector<double> &x, int heads) {
        for (int t = 0; t < p.tokens; t++)
            for (int h = 0; h < heads && p.positions[t] >= 0; h++)
                for (int i = 0; i < dims / 2; i++) {
                    double angle = static_cast<double>(static_cast<float>(p.positions[t]) * inv_freq[i]);
                    size_t a = (static_cast<size_t>(t) * heads + h) * 64 + first + (interleaved ? 2 * i : i);
                    size_t b = a + (interleaved ? 1 : dims / 2);
                    double x0 = x[a], x1 = x[b];
                    x[a] = (x0 * cos(angle) - x1 * sin(angle)) * 1.25;
                    x[b] = (x1 * cos(angle) + x0 * sin(angle)) * 1.25;
                }
    };
    std::vector<double> q_want(p.q.begin(), p.q.end()), k_want(k.begin(), k.end());
    rotate(q_want, 6);
    rotate(k_want, 2);
    expect_close("rotated queries", rel_l2(q_there.read("queries"), q_want), 1e-6);
    std::vector<uint16_t> keys_now = keys.read("keys"), values_now = values.read("values");
    double worst = 0;
    for (int t = 0; t < p.tokens; t++) {
        if (p.positions[t] < 0)
            continue;
        size_t row = p.row_at(p.sequence_of[t], p.positions[t]);
        for (int i = 0; i < 128; i++) {
            double want = k_want[static_cast<size_t>(t) * 128 + i];
            worst = fmax(worst, fabs(nib_bf16_to_f32(keys_now[row * 128 + i]) - want) / (fabs(want) + 1e-4));
            expect(values_now[row * 128 + i] == nib_bf16_from_f32(v[static_cast<size_t>(t) * 128 + i]),
                   "appended values");
            p.keys[row * 128 + i] = keys_now[row * 128 + i];
            p.values[row * 128 + i] = values_now[row * 128 + i];
        }
    }
    expect_close("appended keys", worst, 0.0040);
    expect(p.keys == keys_now && p.values == values_now, "nothing but the new rows was appended");
}

// Rotating, appending and attending in one launch against three steps of it.
void check_fresh(int n_heads, int n_kv_heads, int dim, int window, int repeats = 1)
{
    std::vector<sequence_shape> sequences;
    for (int i = 0; i < repeats; i++)
        for (int cached : {0, 1, 15, 16, 130, 2048, 777})
            sequences.push_back({cached, 1});
    paged_step p({n_heads, n_kv_heads, dim, dim, window, true, false}, sequences, 11);
    random_numbers random(12);
    size_t width = static_cast<size_t>(n_kv_heads) * dim, y_width = static_cast<size_t>(n_heads) * dim;
    std::vector<float> k = random.normals(p.tokens * width), v = random.normals(k.size()), inv_freq;
    for (int i = 0; i < dim / 2; i++)
        inv_freq.push_back(static_cast<float>(pow(150000, -2.0 * i / dim)));
    for (int t = 0; t < p.tokens; t++) // what the step appends is not there yet
        for (size_t i = 0; i < width; i++)
            p.keys[p.row_at(t, p.positions[t]) * width + i] = p.values[p.row_at(t, p.positions[t]) * width + i] =
                0x7fff;
    device_array<int32_t> positions(p.positions), sequence_of(p.sequence_of), first_row(p.first_row),
        tables(p.tables);
    device_array<float> inv(inv_freq), k_there(k), v_there(v), sinks(p.sinks);
    nib_cuda_step step = {};
    step.n_tokens = step.n_sequences = p.tokens;
    step.page_tokens = page_tokens;
    step.page_shift = page_shift;
    step.table_width = p.table_width;
    step.reach = p.table_width * page_tokens;
    step.positions = positions.data();
    step.sequence_of = sequence_of.data();
    step.first_row = first_row.data();
    std::vector<float> y[2];
    std::vector<uint16_t> keys_now[2], values_now[2];
    for (int fused = 0; fused < 2; fused++) {
        device_array<uint16_t> keys(p.keys), values(p.values);
        device_array<float> q(p.q), result(p.tokens * y_width);
        result.poison();
        nib_cuda_rotation turn = {inv.data(), 0, dim, 1.25f, false};
        nib_cuda_rotate_append fresh = {q.data(),
                                        k_there.data(),
                                        v_there.data(),
                                        n_heads,
                                        dim,
                                        n_kv_heads,
                                        dim,
                                        turn,
                                        turn,
                                        {keys.data(), static_cast<int64_t>(width), tables.data()},
                                        {values.data(), static_cast<int64_t>(width), tables.data()}};
        nib_cuda_attention call = {};
        call.y = result.data();
        call.q = q.data();
        call.keys = fresh.keys;
        call.values = fresh.values;
        call.n_heads = n_heads;
        call.n_kv_heads = n_kv_heads;
        call.head_dim = call.v_dim = dim;
        call.window = window;
        call.scale = 0.1f;
        call.value_scale = 1;
        call.sinks = sinks.data();
        call.longest = 1;
        expect(nib_cuda_attend_fresh_takes(&call, &fresh), "one launch takes the step");
        if (fused) {
            MUST(nib_cuda_attend_fresh(nullptr, &step, &call, &fresh));
        } else {
            MUST(nib_cuda_rotate_and_append(nullptr, &step, &fresh));
            MUST(nib_cuda_attend_paged(nullptr, &step, &call));
        }
        MUST(cudaDeviceSynchronize());
        y[fused] = result.read("attention of fresh rows");
        keys_now[fused] = keys.read("keys");
        values_now[fused] = values.read("values");
    }
    expect_close("attention of fresh rows", rel_l2(y[1], std::vector<double>(y[0].begin(), y[0].end())), 1e-3);
    expect(values_now[0] == values_now[1], "fresh values");
    double worst = 0;
    bool apart = true;
    for (size_t i = 0; i < keys_now[0].size(); i++) {
        float a = nib_bf16_to_f32(keys_now[0][i]), b = nib_bf16_to_f32(keys_now[1][i]);
        apart &= std::isnan(a) == std::isnan(b);
        worst = fmax(worst, std::isnan(a) ? 0 : fabs(a - b) / (fabs(a) + 1e-3));
    }
    expect(apart, "fresh keys are where they belong");
    expect_close("fresh keys", worst, 0.008);
}

void time_case(const char *name, int rows, int context, int fresh, int window, double read_rate,
               bool scattered = false)
{
    constexpr int layers = 12;
    int sequences = fresh > 1 ? 1 : rows, pages_each = (context + fresh + page_tokens - 1) / page_tokens;
    size_t pages = static_cast<size_t>(pages_each) * sequences, elements = pages * page_tokens * 512;
    int copies = static_cast<int>(1 + (size_t{400} << 20) / (elements * 4));
    copies = copies > layers ? layers : copies;
    device_array<uint16_t> keys(elements * copies), values(elements * copies),
        half(static_cast<size_t>(rows) * 4096);
    MUST(cudaMemset(keys.data(), 0x3c, keys.bytes()));
    MUST(cudaMemset(values.data(), 0x3c, values.bytes()));
    std::vector<int32_t> tables(pages), positions(rows), sequence_of(rows), first_row(sequences + 1);
    for (size_t i = 0; i < pages; i++) // pages together, or as sequences that grow side by side get them
        tables[i] = static_cast<int32_t>(scattered ? (i % pages_each) * sequences + i / pages_each : i);
    for (int i = 0; i < rows; i++) {
        positions[i] = fresh > 1 ? context + i : context;
        sequence_of[i] = fresh > 1 ? 0 : i;
    }
    for (int s = 0; s <= sequences; s++)
        first_row[s] = fresh > 1 ? s * rows : s;
    device_array<int32_t> tables_there(tables), positions_there(positions), sequence_there(sequence_of),
        first_there(first_row);
    device_array<float> q(static_cast<size_t>(rows) * 4096), sinks(64);
    MUST(cudaMemset(q.data(), 0x3c, q.bytes()));
    MUST(cudaMemset(sinks.data(), 0, sinks.bytes()));
    nib_cuda_step step = {};
    step.n_tokens = rows;
    step.n_sequences = sequences;
    step.page_tokens = page_tokens;
    step.page_shift = page_shift;
    step.table_width = pages_each;
    step.positions = positions_there.data();
    step.sequence_of = sequence_there.data();
    step.first_row = first_there.data();
    double us = time_calls(fresh > 1 ? 4 : layers, [&](cudaStream_t stream, int i) {
        nib_cuda_attention call = {};
        call.y_half = half.data();
        call.q = q.data();
        call.keys = {keys.data() + elements * (i % copies), 512, tables_there.data()};
        call.values = {values.data() + elements * (i % copies), 512, tables_there.data()};
        call.n_heads = 64;
        call.n_kv_heads = 8;
        call.head_dim = call.v_dim = 64;
        call.window = window;
        call.scale = 0.125f;
        call.value_scale = 1;
        call.sinks = sinks.data();
        call.longest = fresh;
        return nib_cuda_attend_paged(stream, &step, &call);
    });
    double seen = window && window < context ? window : context;
    if (fresh > 1) {
        double pairs = window ? static_cast<double>(rows) * window : (context + rows * 0.5) * rows;
        printf("attend %-15s %5d rows: %8.2f us  %4.0f TFLOP/s\n", name, rows, us, pairs * 64 * 256 / us * 1e-6);
        return;
    }
    double rate = seen * rows * 2048 / us * 1e-3;
    printf("attend %-15s rows %2d context %6d: %8.2f us  %5.0f GB/s  %.2f of the read\n", name, rows, context, us,
           rate, rate / read_rate);
}

} // namespace

void check_attention()
{
    const std::vector<sequence_shape> decodes = {{0, 1},    {1, 1},    {14, 1},  {15, 1},  {16, 1},
                                                 {32, 1},   {126, 1},  {127, 1}, {128, 1}, {200, 1},
                                                 {1000, 1}, {2048, 1}, {5003, 1}},
                                      mixed = {{0, 70}, {77, 1}, {300, 3}, {0, 5}, {1000, 200}, {33, 4}, {0, 1}},
                                      small = {{0, 9}, {50, 1}, {100, 40}};
    uint64_t seed = 1;
    for (int window : {0, 128}) {
        check_case("decode", {64, 8, 64, 64, window, true, false}, decodes, seed++, 3);
        check_case("mixed", {64, 8, 64, 64, window, true, false}, mixed, seed++, 7);
        check_case("mixed", {9, 3, 64, 64, window, false, false}, mixed, seed++, 5);
    }
    check_case("decode", {64, 4, 64, 64, 0, true, false}, decodes, seed++, 5);
    // As many rows as get two blocks or one, and a long one among them.
    for (int rows : {20, 40}) {
        std::vector<sequence_shape> many;
        for (int i = 0; i < rows; i++)
            many.push_back({(i * 379 + 1) % 1500, 1});
        check_case("many rows", {24, 8, 64, 64, 0, true, false}, many, seed++, 7);
        check_case("many rows", {24, 8, 64, 64, 500, false, false}, many, seed++, 7);
        check_case("many rows", {16, 8, 128, 128, 0, true, false}, many, seed++, 7);
        check_case("many rows", {40, 1, 576, 512, 0, true, true}, many, seed++, 37);
        many[3].cached = 17000;
        check_case("many rows, one long", {24, 8, 64, 64, 0, true, false}, many, seed++, 23);
    }
    for (const head_shape &shape :
         {head_shape{4, 2, 16, 16, 16, true, false}, head_shape{8, 2, 32, 32, 16, true, false},
          head_shape{4, 4, 48, 32, 0, false, false}, head_shape{8, 1, 48, 48, 5, false, false},
          head_shape{6, 2, 96, 96, 0, true, false}, head_shape{32, 4, 128, 128, 0, false, false},
          head_shape{48, 3, 128, 128, 100, true, false}, head_shape{64, 4, 192, 128, 128, true, false},
          head_shape{12, 4, 192, 128, 0, false, false}, head_shape{20, 1, 576, 512, 0, false, true},
          head_shape{4, 1, 48, 32, 0, false, true}}) {
        check_case("mixed", shape, small, seed++);
        check_case("decode", shape, {{400, 1}, {2047, 1}}, seed++);
    }
    for (int window : {0, 128, 500}) {
        check_fresh(64, 8, 64, window);
        check_fresh(24, 8, 64, window, 3);
        check_fresh(24, 8, 64, window, 6);
        check_fresh(20, 1, 64, window);
        check_fresh(6, 2, 128, window);
        check_fresh(32, 2, 128, window);
    }
    check_rotation(false, 0, 64);
    check_rotation(true, 0, 64);
    check_rotation(false, 16, 32);
    check_rotation(true, 48, 16);
}

void time_attention(double read_rate)
{
    for (int rows : {1, 2, 4, 8, 16, 32, 64}) {
        time_case("full", rows, 2048, 1, 0, read_rate);
        time_case("full, scattered", rows, 2048, 1, 0, read_rate, true);
        time_case("window", rows, 2048, 1, 128, read_rate);
    }
    time_case("full", 1, 8192, 1, 0, read_rate);
    time_case("full", 8, 8192, 1, 0, read_rate);
    time_case("full", 1, 65535, 1, 0, read_rate);
    time_case("window", 1, 65535, 1, 128, read_rate);
    time_case("full", 8, 65535, 1, 0, read_rate);
    time_case("prefill", 8192, 0, 8192, 0, read_rate);
    time_case("prefill window", 8192, 0, 8192, 128, read_rate);
    time_case("prefill after", 2048, 16384, 2048, 0, read_rate);
}

#include "cuda/skinny_linear.h"
#include "kernel_check.h"

namespace
{

struct linear_case {
    int cols, rows;
    std::vector<int> outs;
    bool bias, added, any_order = false;
};

struct linear_data {
    std::vector<std::vector<uint16_t>> weights;
    std::vector<std::vector<float>> biases;
    std::vector<uint16_t> x;
    std::vector<float> added;
    int width;
};

linear_data make_data(const linear_case &c, uint64_t seed)
{
    random_numbers random(seed);
    linear_data d;
    d.width = 3; // columns that belong to nobody
    for (int out : c.outs) {
        d.weights.push_back(random.normals_bf16(static_cast<size_t>(out) * c.cols, 0.05f));
        d.biases.push_back(random.normals(static_cast<size_t>(out)));
        d.width += out;
    }
    d.x = random.normals_bf16(static_cast<size_t>(c.rows) * c.cols);
    d.added = random.normals(static_cast<size_t>(c.rows) * d.width);
    return d;
}

std::vector<double> reference(const linear_case &c, const linear_data &d)
{
    std::vector<double> y(static_cast<size_t>(c.rows) * d.width, NAN);
    for (int r = 0; r < c.rows; r++) {
        int column = 0;
        for (size_t p = 0; p < c.outs.size(); p++)
            for (int o = 0; o < c.outs[p]; o++, column++) {
                double sum = c.bias ? d.biases[p][o] : 0;
                for (int k = 0; k < c.cols; k++)
                    sum += static_cast<double>(nib_bf16_to_f32(d.x[static_cast<size_t>(r) * c.cols + k])) *
                           nib_bf16_to_f32(d.weights[p][static_cast<size_t>(o) * c.cols + k]);
                size_t at = static_cast<size_t>(r) * d.width + column;
                y[at] = sum + (c.added ? d.added[at] : 0);
            }
    }
    return y;
}

// Runs rows first … first + rows - 1 of the case; what no product writes stays NaN.
std::vector<float> run(const linear_case &c, const linear_data &d, int first, int rows)
{
    std::vector<uint16_t> x(d.x.begin() + static_cast<long>(first) * c.cols,
                            d.x.begin() + static_cast<long>(first + rows) * c.cols);
    std::vector<float> added(d.added.begin() + static_cast<long>(first) * d.width,
                             d.added.begin() + static_cast<long>(first + rows) * d.width);
    device_array<uint16_t> x_there(x);
    device_array<float> added_there(added), y(static_cast<size_t>(rows) * d.width);
    y.poison();
    nib_cuda_skinny_linear call = {};
    call.x = x_there.data();
    call.rows = rows;
    call.cols = c.cols;
    call.any_order = c.any_order;
    call.n_outputs = static_cast<int32_t>(c.outs.size());
    std::vector<device_array<uint16_t> *> weights;
    std::vector<device_array<float> *> biases;
    int column = 0;
    for (size_t p = 0; p < c.outs.size(); p++) {
        weights.push_back(new device_array<uint16_t>(d.weights[p]));
        biases.push_back(new device_array<float>(d.biases[p]));
        call.outputs[p] = {weights[p]->data(),
                           c.bias ? biases[p]->data() : nullptr,
                           c.added ? added_there.data() + column : nullptr,
                           y.data() + column,
                           d.width,
                           c.outs[p]};
        column += c.outs[p];
    }
    MUST(nib_cuda_multiply_skinny(nullptr, &call));
    MUST(cudaDeviceSynchronize());
    std::vector<float> result = y.read("skinny linear");
    for (size_t p = 0; p < c.outs.size(); p++) {
        delete weights[p];
        delete biases[p];
    }
    return result;
}

void check_case(const linear_case &c, uint64_t seed)
{
    char what[96];
    snprintf(what, sizeof what, "skinny linear of %d rows, %d columns, %d outputs", c.rows, c.cols, c.outs[0]);
    linear_data d = make_data(c, seed);
    std::vector<float> all = run(c, d, 0, c.rows);
    expect_close(what, rel_l2(all, reference(c, d)), 3e-6);
    expect(same_bits(all.data(), run(c, d, 0, c.rows).data(), all.size()), "a skinny linear repeats its bits");
    if (c.any_order)
        return;
    bool alone = true;
    for (int r = 0; r < c.rows; r += 1 + c.rows / 3) {
        std::vector<float> row = run(c, d, r, 1);
        alone &= same_bits(row.data(), all.data() + static_cast<size_t>(r) * d.width, row.size());
    }
    expect(alone, "a row's bits do not depend on its neighbours");
}

void check_nan()
{
    linear_case c = {96, 5, {37}, true, false};
    linear_data d = make_data(c, 99);
    d.x[2 * 96 + 5] = 0x7fc0;
    d.weights[0][20 * 96 + 95] = 0x7f80; // infinity
    std::vector<float> y = run(c, d, 0, c.rows);
    bool right = true;
    for (int r = 0; r < c.rows; r++)
        for (int o = 0; o < 37; o++)
            right &= std::isfinite(y[static_cast<size_t>(r) * d.width + o]) == (r != 2 && o != 20);
    expect(right, "NaN and infinity stay in their row and column");
}

// The fused norm: the same bits as a norm of its own would give, so the products agree to the last bit but for rounding
// of the norm itself to bf16.
void check_norm(int rows, int cols)
{
    random_numbers random(7);
    std::vector<float> x = random.normals(static_cast<size_t>(rows) * cols, 3), w = random.normals(cols);
    std::vector<uint16_t> weight = random.normals_bf16(static_cast<size_t>(50) * cols, 0.05f);
    std::vector<double> want(static_cast<size_t>(rows) * 50);
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int k = 0; k < cols; k++)
            sum +=
                static_cast<double>(x[static_cast<size_t>(r) * cols + k]) * x[static_cast<size_t>(r) * cols + k];
        double inverse = 1 / sqrt(sum / cols + 1e-5);
        for (int o = 0; o < 50; o++)
            for (int k = 0; k < cols; k++)
                want[static_cast<size_t>(r) * 50 + o] +=
                    x[static_cast<size_t>(r) * cols + k] * inverse * w[k] *
                    nib_bf16_to_f32(weight[static_cast<size_t>(o) * cols + k]);
    }
    device_array<float> x_there(x), w_there(w), y(static_cast<size_t>(rows) * 50);
    device_array<uint16_t> weight_there(weight);
    nib_cuda_skinny_linear call = {};
    call.x_wide = x_there.data();
    call.norm_weight = w_there.data();
    call.eps = 1e-5f;
    call.rows = rows;
    call.cols = cols;
    call.n_outputs = 1;
    call.outputs[0] = {weight_there.data(), nullptr, nullptr, y.data(), 50, 50};
    MUST(nib_cuda_multiply_skinny(nullptr, &call));
    MUST(cudaDeviceSynchronize());
    expect_close("skinny linear of normed inputs", rel_l2(y.read("normed linear"), want), 3e-3);
}

void time_case(const char *name, int out, int cols, int rows, double read_rate)
{
    size_t bytes = static_cast<size_t>(out) * cols * 2;
    int copies = static_cast<int>(1 + (size_t{600} << 20) / bytes),
        launches = bytes > (size_t{200} << 20) ? 6 : 36;
    device_array<uint16_t> weights(bytes / 2 * copies), x(static_cast<size_t>(rows) * cols);
    device_array<float> y(static_cast<size_t>(rows) * out), bias(out);
    MUST(cudaMemset(weights.data(), 0x3c, bytes * copies));
    MUST(cudaMemset(x.data(), 0x3c, x.bytes()));
    double us = time_calls(launches, [&](cudaStream_t stream, int i) {
        nib_cuda_skinny_linear call = {};
        call.x = x.data();
        call.rows = rows;
        call.cols = cols;
        call.any_order = true;
        call.n_outputs = 1;
        call.outputs[0] = {weights.data() + bytes / 2 * (i % copies), bias.data(), nullptr, y.data(), out, out};
        return nib_cuda_multiply_skinny(stream, &call);
    });
    double rate = static_cast<double>(bytes) / us * 1e-3;
    printf("linear %-7s rows %2d: %8.2f us  %5.0f GB/s  %.2f of the read\n", name, rows, us, rate,
           rate / read_rate);
}

} // namespace

void check_linears()
{
    uint64_t seed = 1;
    for (int rows : {1, 2, 3, 8, 9, 16, 17, 31, 33, 64}) {
        check_case({2880, rows, {129, 64, 64}, true, rows % 2 == 0}, seed++);
        check_case({4096, rows, {83}, true, true}, seed++);
        check_case({72, rows, {5, 16, 3, 700}, rows % 2 == 1, false}, seed++);
        check_case({8, rows, {3000}, false, false}, seed++);
        check_case({7168, rows, {33}, false, true}, seed++);
        check_case({2880, rows, {129, 64, 64}, true, rows % 2 == 0, true}, seed++);
        check_case({104, rows, {8500}, true, true, true}, seed++);
        check_case({8, rows, {3}, true, false, true}, seed++);
    }
    check_nan();
    check_norm(1, 2880);
    check_norm(3, 130 * 8);
    expect(!nib_cuda_skinny_takes(65, 64) && !nib_cuda_skinny_takes(1, 12),
           "shapes beyond the limits are refused");
}

void time_linears(double read_rate)
{
    for (int rows : {1, 2, 4, 8, 16, 32, 64}) {
        time_case("qkv", 5120, 2880, rows, read_rate);
        time_case("o", 2880, 4096, rows, read_rate);
        time_case("router", 128, 2880, rows, read_rate);
        time_case("head", 201088, 2880, rows, read_rate);
    }
}

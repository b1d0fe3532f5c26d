#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const struct nib_model_family *const families[] = {&nib_gpt_oss_family, &nib_deepseek_v3_family,
                                                          &nib_mimo_v2_family, &nib_minimax_m2_family,
                                                          &nib_qwen3_moe_family};

static nib_status find_family(const struct nib_config *config, const struct nib_model_family **family,
                              struct nib_error *err)
{
    const char *type;
    // OpenAI's own gpt-oss folders carry a config without a model_type.
    const char *fallback = nib_config_has(config, "swiglu_limit") ? "gpt_oss" : "";
    nib_status status = nib_config_string_or(config, "model_type", fallback, &type, err);
    if (status)
        return status;
    char why[256] = "nibble runs:";
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (const char *const *known = families[i]->model_types; *known; known++) {
            if (strcmp(*known, type) == 0) {
                *family = families[i];
                return NIB_OK;
            }
            snprintf(why + strlen(why), sizeof why - strlen(why), " %s", *known);
        }
    if (!*type)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: model_type is missing", nib_config_name(config));
    return nib_config_refuse(config, "model_type", why, err);
}

// Weights are read by what they are, whatever a config calls them; but a method that stores nothing that is read here is
// named, rather than the first of the tensors that are missing.
static nib_status check_quantization(const struct nib_config *config, struct nib_error *err)
{
    static const char *const read[] = {"", "mxfp4", "quark", "compressed-tensors", "fp8", "fbgemm_fp8"};
    static const char key[] = "quantization_config.quant_method";
    const char *method;
    nib_status status = nib_config_string_or(config, key, "", &method, err);
    if (status)
        return status;
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        if (strcmp(read[i], method) == 0)
            return NIB_OK;
    return nib_config_refuse(config, key, "its weights are not read here", err);
}

nib_status nib_model_create(const struct nib_config *config, struct nib_model **model, struct nib_error *err)
{
    const struct nib_model_family *family;
    nib_status status = find_family(config, &family, err);
    if (!status)
        status = check_quantization(config, err);
    return status ? status : family->create(config, model, err);
}

void nib_model_free(struct nib_model *model)
{
    if (model)
        model->family->free(model);
}

nib_status nib_model_bind(struct nib_model *model, struct nib_checkpoint *checkpoint, const struct nib_ops *ops,
                          struct nib_device *device, int64_t max_tokens, int64_t max_outputs,
                          struct nib_error *err)
{
    model->ops = ops;
    model->device = device;
    return model->family->bind(model, checkpoint, max_tokens, max_outputs, err);
}

void nib_model_forward(struct nib_model *model, const struct nib_step *step, const struct nib_cache *caches)
{
    model->family->forward(model, step, caches);
}

static nib_status refuse_shape(const struct nib_tensor *tensor, int64_t rows, int64_t cols, struct nib_error *err)
{
    char text[96];
    nib_tensor_describe(tensor, text, sizeof text);
    if (rows == 1)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: tensor %s is %s, the config asks for [%lld]", tensor->file,
                        tensor->name, text, (long long)cols);
    return nib_fail(err, NIB_ERR_FORMAT, "%s: tensor %s is %s, the config asks for [%lld, %lld]", tensor->file,
                    tensor->name, text, (long long)rows, (long long)cols);
}

static nib_status bind_view(struct nib_model *model, struct nib_checkpoint *checkpoint,
                            const struct nib_tensor *tensor, const struct nib_weight_view *view,
                            struct nib_weight *weight, struct nib_error *err)
{
    nib_status status = model->ops->bind(model->device, view, weight, err);
    if (!status && weight->dtype == NIB_I8) // the file's pages were read once and are not needed again
        nib_checkpoint_advise(checkpoint, tensor, NIB_ADVICE_DONT_NEED);
    return status;
}

nib_status nib_bind_tensor(struct nib_model *model, struct nib_checkpoint *checkpoint, const char *name,
                           int64_t rows, int64_t cols, bool may_narrow, struct nib_weight *weight,
                           struct nib_error *err)
{
    const struct nib_tensor *tensor;
    nib_status status = nib_checkpoint_require(checkpoint, name, &tensor, err);
    if (status)
        return status;
    bool fits = rows == 1 ? tensor->rank == 1 && tensor->shape[0] == cols
                          : tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols;
    if (!fits)
        return refuse_shape(tensor, rows, cols, err);
    struct nib_weight_view view = {.data = tensor->data,
                                   .dtype = tensor->dtype,
                                   .rows = rows,
                                   .cols = cols,
                                   .name = tensor->name,
                                   .may_narrow = may_narrow};
    return bind_view(model, checkpoint, tensor, &view, weight, err);
}

nib_status nib_bind_linear(struct nib_model *model, struct nib_checkpoint *checkpoint, const char *name,
                           int64_t rows, int64_t cols, bool may_narrow, struct nib_weight *weight,
                           struct nib_weight *bias, struct nib_error *err)
{
    struct nib_linear_view linear;
    nib_status status = nib_checkpoint_linear(checkpoint, name, &linear, err);
    if (status)
        return status;
    if (linear.rows != rows || linear.cols != cols)
        return refuse_shape(linear.weight, rows, cols, err);
    struct nib_weight_view view = {.data = linear.weight->data,
                                   .dtype = linear.weight->dtype,
                                   .rows = rows,
                                   .cols = cols,
                                   .name = linear.weight->name,
                                   .may_narrow = may_narrow};
    if (linear.kind == NIB_LINEAR_MXFP4)
        view.dtype = NIB_U8; // also where the file says I8
    if (linear.scale) {
        view.scales = linear.scale->data;
        view.scale_dtype = linear.scale->dtype;
        view.block_rows = linear.block_rows;
        view.block_cols = linear.block_cols;
    }
    status = bind_view(model, checkpoint, linear.weight, &view, weight, err);
    if (status || !linear.bias)
        return status;
    return nib_bind_tensor(model, checkpoint, linear.bias->name, 1, rows, false, bias, err);
}

/*
 * What kind of directory is it? A plain Hugging Face checkpoint has
 * config.json and model.safetensors or an index of shards. Adapters, GGUF,
 * pickles, Meta's own layout, packages, hub cache folders and quantized
 * weights get one sentence each that says what it is and what to use.
 *
 * The config files word what quantization it is; whether the weights that are
 * needed are plain is judged by their tensors (ckpt_names.c).
 */
#include "models/checkpoint_priv.h"

#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"

#define MAX_JSON (16u << 20)

static bool starts(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);

    return n >= m && !strcmp(s + n - m, with);
}

static void survey_name(struct ckpt_files *f, const char *s)
{
    bool st = ends(s, ".safetensors");

    if (!strcmp(s, CKPT_CONFIG_NAME))
        f->config = true;
    else if (!strcmp(s, "hf_quant_config.json"))
        f->hf_quant = true;
    else if (!strcmp(s, "adapter_config.json"))
        f->adapter_config = true;
    else if (!strcmp(s, CKPT_SINGLE_NAME))
        f->single = true;
    else if (!strcmp(s, CKPT_INDEX_NAME))
        f->index = true;
    else if (!strcmp(s, "params.json"))
        f->params = true;
    else if (!strcmp(s, "meta.yaml") || ends(s, ".mlpackage") ||
             ends(s, ".mlmodelc"))
        f->package = true;
    else if (!strcmp(s, "snapshots"))
        f->hub = true;
    else if (ends(s, ".gguf"))
        f->gguf = s;
    else if (starts(s, "pytorch_model") && ends(s, ".bin"))
        f->pickle = s;
    else if (starts(s, "consolidated") && (st || ends(s, ".pth")))
        f->consolidated = s;
    else if (starts(s, "adapter_model.") || !strcmp(s, "adapters.safetensors"))
        f->adapter = s;
    else if (st)
        f->loose = s;
}

/* `dir` is something else: say what. */
static int not_a_directory(const char *dir, struct err *e)
{
    struct io_file f = IO_FILE_INIT;

    if (!io_exists(dir))
        return err_set(e, ERR_INPUT, "there is no directory '%s'", dir);
    if (io_open_input(&f, dir, e))
        return -1;
    io_close(&f);
    if (ends(dir, ".gguf"))
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' is a GGUF file, which is not read: take the "
                       "safetensors checkpoint that it was made from",
                       dir);
    return err_set(e, ERR_INPUT,
                   "'%s' is a file: pass the directory that holds config.json "
                   "and the weights",
                   dir);
}

int ckpt_survey(const char *dir, struct ckpt_files *f, struct err *e)
{
    memset(f, 0, sizeof *f);
    if (!io_is_dir(dir))
        return not_a_directory(dir, e);
    if (io_list(dir, &f->names, &f->n, e))
        return -1;
    for (size_t i = 0; i < f->n; i++)
        survey_name(f, f->names[i]);
    return 0;
}

void ckpt_files_release(struct ckpt_files *f)
{
    io_list_free(f->names, f->n);
    memset(f, 0, sizeof *f);
}

static struct js_doc *read_json(const char *dir, const char *name,
                                struct err *e)
{
    char *path = io_join(dir, name, e);
    struct js_doc *d = path ? js_read_file(path, MAX_JSON, e) : NULL;

    mem_free(path);
    return d;
}

/* A LoRA or other adapter; `beside`: lies with a whole model. */
static int refuse_adapter(const char *dir, const struct ckpt_files *f,
                          bool beside, struct err *e)
{
    struct js_doc *d = NULL;
    const char *type = "LoRA", *base = NULL;
    char t[HP_CLEAN_MAX], b[HP_CLEAN_MAX];

    if (f->adapter_config) {
        d = read_json(dir, "adapter_config.json", e);
        if (!d)
            return -1;
        js_string(js_get(js_root(d), "base_model_name_or_path"), &base);
        js_string(js_get(js_root(d), "peft_type"), &type);
        if (!strcmp(type, "LORA"))
            type = "LoRA";
    }
    hp_clean(t, type);
    if (beside)
        err_set(e, ERR_UNSUPPORTED,
                "'%s' holds a %s adapter ('%s') beside a model: it would be "
                "left out silently; merge it into the model or move it away",
                dir, t, f->adapter);
    else if (base)
        err_set(e, ERR_UNSUPPORTED,
                "'%s' is a %s adapter for '%s', not a whole model: merge it "
                "into its base and convert the result",
                dir, t, hp_clean(b, base));
    else
        err_set(e, ERR_UNSUPPORTED,
                "'%s' is a %s adapter, not a whole model: merge it into its "
                "base and convert the result",
                dir, t);
    js_free(d);
    return -1;
}

static int refuse_foreign(const char *dir, const struct ckpt_files *f,
                          struct err *e)
{
    if (f->gguf)
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' holds GGUF weights only ('%s'), which are not "
                       "read: take the safetensors checkpoint that they were "
                       "made from",
                       dir, f->gguf);
    if (f->consolidated)
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' holds the model in its maker's own layout only "
                       "('%s'), whose names and q/k row order differ: take "
                       "the Hugging Face form",
                       dir, f->consolidated);
    if (f->pickle)
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' holds PyTorch pickles only ('%s'), which are not "
                       "read: save the model as safetensors",
                       dir, f->pickle);
    return 0;
}

static int refuse_hub(const char *dir, struct err *e)
{
    char *path = io_join(dir, "snapshots", e), **names = NULL;
    size_t n = 0;

    if (!path || io_list(path, &names, &n, e)) {
        mem_free(path);
        return -1;
    }
    err_set(e, ERR_INPUT,
            "'%s' is a hub cache folder: pass one of its snapshots%s%s%s", dir,
            n ? ", such as '" : "", n ? names[0] : "", n ? "'" : "");
    io_list_free(names, n);
    mem_free(path);
    return -1;
}

int ckpt_judge_files(const char *dir, const struct ckpt_files *f, struct err *e)
{
    bool weights = f->single || f->index;

    if (f->config) {
        if (f->adapter)
            return refuse_adapter(dir, f, weights, e);
        return weights ? 0 : refuse_foreign(dir, f, e);
    }
    if (f->adapter_config || f->adapter)
        return refuse_adapter(dir, f, false, e);
    if (f->package)
        return err_set(e, ERR_INPUT,
                       "'%s' is a Core ML package, not a checkpoint", dir);
    if (f->hub)
        return refuse_hub(dir, e);
    if (refuse_foreign(dir, f, e))
        return -1;
    return err_set(e, ERR_INPUT,
                   "there is no config.json in '%s': it is no Hugging Face "
                   "checkpoint",
                   dir);
}

int ckpt_no_weights(const char *dir, const struct ckpt_files *f, struct err *e)
{
    if (f->loose)
        return err_set(e, ERR_INPUT,
                       "there are no weights to use in '%s': files such as "
                       "'%s' are there, but neither " CKPT_SINGLE_NAME
                       " nor " CKPT_INDEX_NAME,
                       dir, f->loose);
    return err_set(e, ERR_INPUT,
                   "there are no weights in '%s': neither " CKPT_SINGLE_NAME
                   " nor " CKPT_INDEX_NAME,
                   dir);
}

/* ---- quantization, as the config words it ---- */

static const struct {
    const char *method, *what;
} methods[] = {
    { "gptq", "GPTQ-quantized" },
    { "awq", "AWQ-quantized" },
    { "bitsandbytes", "bitsandbytes-quantized" },
    { "fp8", "FP8-quantized" },
    { "fbgemm_fp8", "FP8-quantized (fbgemm)" },
    { "mxfp4", "MXFP4-quantized" },
    { "compressed-tensors", "quantized with compressed-tensors" },
    { "modelopt", "quantized with modelopt" },
};

static void add_detail(struct ckpt_quant *q, const char *text)
{
    size_t n = strlen(q->what);
    bool open = n && q->what[n - 1] == ')';

    /* One pair of brackets holds all details. */
    if (open)
        q->what[--n] = 0;
    snprintf(q->what + n, sizeof q->what - n, "%s%s)", open ? ", " : " (",
             text);
}

static void add_number(struct ckpt_quant *q, const struct js_node *o,
                       const char *const *keys, const char *fmt)
{
    char t[64];
    int64_t v;

    for (; *keys; keys++) {
        if (!js_integral(js_get(o, *keys), &v) || v <= 0 || v > 65536)
            continue;
        snprintf(t, sizeof t, fmt, (int)v);
        add_detail(q, t);
        return;
    }
}

static void add_words(struct ckpt_quant *q, const struct js_node *o,
                      const char *key)
{
    char t[HP_CLEAN_MAX];
    const char *s;

    if (js_string(js_get(o, key), &s))
        add_detail(q, hp_clean(t, s));
}

static void add_details(struct ckpt_quant *q, const struct js_node *o)
{
    static const char *const bits[] = { "bits", "w_bit", NULL };
    static const char *const group[] = { "group_size", "q_group_size", NULL };
    bool on = false;

    add_words(q, o, "quant_algo");
    add_words(q, o, "format");
    add_words(q, o, "fmt");
    add_number(q, o, bits, "%d bits");
    add_number(q, o, group, "groups of %d");
    if ((js_bool(js_get(o, "load_in_4bit"), &on) && on) ||
        (js_bool(js_get(o, "_load_in_4bit"), &on) && on)) {
        add_detail(q, "4 bits");
        add_words(q, o, "bnb_4bit_quant_type");
    } else if (js_bool(js_get(o, "load_in_8bit"), &on) && on) {
        add_detail(q, "8 bits");
    }
}

static void word_method(struct ckpt_quant *q, const char *method)
{
    char t[HP_CLEAN_MAX];

    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (!strcmp(methods[i].method, method)) {
            snprintf(q->what, sizeof q->what, "%s", methods[i].what);
            return;
        }
    snprintf(q->what, sizeof q->what, "quantized with '%s'",
             hp_clean(t, method));
}

static void word_config(struct ckpt_quant *q, const struct js_node *config)
{
    const struct js_node *text = hp_value(config, "text_config");
    const struct js_node *mlx = hp_value(config, "quantization");
    const struct js_node *o = hp_value(config, "quantization_config");
    const char *method;

    q->where = "quantization_config in config.json";
    if (!o) {
        o = hp_value(text, "quantization_config");
        q->where = "quantization_config in text_config of config.json";
    }
    if (!o) {
        o = hp_value(config, "compression_config");
        q->where = "compression_config in config.json";
    }
    if (js_string(js_get(o, "quant_method"), &method)) {
        word_method(q, method);
    } else if (mlx && js_kind(mlx) == JS_OBJECT) {
        snprintf(q->what, sizeof q->what, "MLX-quantized");
        q->where = "quantization in config.json";
        o = mlx;
    } else if (js_get(o, "quant_algo")) {
        word_method(q, "modelopt");
    } else if (o) {
        snprintf(q->what, sizeof q->what,
                 "quantized by a method that is not named");
    } else {
        return;
    }
    add_details(q, o);
}

static int word_modelopt(const char *dir, struct ckpt_quant *q, struct err *e)
{
    struct js_doc *d = read_json(dir, "hf_quant_config.json", e);
    const struct js_node *o;
    const char *s;

    if (!d)
        return -1;
    o = hp_value(js_root(d), "quantization");
    if (js_string(js_get(o, "quant_algo"), &s)) {
        word_method(q, "modelopt");
        q->where = "hf_quant_config.json";
        add_details(q, o);
    }
    js_free(d);
    return 0;
}

int ckpt_quant_words(const char *dir, const struct ckpt_files *f,
                     const struct js_node *config, struct ckpt_quant *q,
                     struct err *e)
{
    memset(q, 0, sizeof *q);
    word_config(q, config);
    if (!q->what[0] && f->hf_quant)
        return word_modelopt(dir, q, e);
    return 0;
}

/* ---- quantization, as the tensors tell it ---- */

#define ORIGINAL "take the model that it was made from"
#define MERGE "merge them into the weights first"

/* More specific markers first. */
static const struct ckpt_sign signs[] = {
    { ".qweight", "GPTQ- or AWQ-quantized", ORIGINAL },
    { ".qzeros", "GPTQ- or AWQ-quantized", ORIGINAL },
    { ".g_idx", "GPTQ-quantized", ORIGINAL },
    { ".absmax", "bitsandbytes-quantized (4 bits)", ORIGINAL },
    { ".nested_absmax", "bitsandbytes-quantized (4 bits)", ORIGINAL },
    { ".quant_map", "bitsandbytes-quantized (4 bits)", ORIGINAL },
    { ".nested_quant_map", "bitsandbytes-quantized (4 bits)", ORIGINAL },
    { ".quant_state", "bitsandbytes-quantized (4 bits)", ORIGINAL },
    { ".SCB", "bitsandbytes-quantized (8 bits)", ORIGINAL },
    { ".weight_format", "bitsandbytes-quantized (8 bits)", ORIGINAL },
    { ".weight_packed", "quantized with compressed-tensors", ORIGINAL },
    { ".weight_zero_point", "quantized with compressed-tensors", ORIGINAL },
    { ".weight_shape", "quantized with compressed-tensors", ORIGINAL },
    { ".weight_scale_inv", "FP8-quantized", ORIGINAL },
    { ".weight_scale_2", "NVFP4-quantized", ORIGINAL },
    { ".weight_scale", "quantized (a scale per tensor or row)", ORIGINAL },
    { ".input_scale", "quantized (a scale per tensor)", ORIGINAL },
    { ".scales", "MLX-quantized", ORIGINAL },
    { ".biases", "MLX-quantized", ORIGINAL },
    { ".lora_A", "a model with unmerged LoRA matrices", MERGE },
    { ".lora_B", "a model with unmerged LoRA matrices", MERGE },
    { ".lora_embedding_A", "a model with unmerged LoRA matrices", MERGE },
    { ".lora_embedding_B", "a model with unmerged LoRA matrices", MERGE },
    { ".base_layer", "a model with unmerged LoRA matrices", MERGE },
};

const struct ckpt_sign *ckpt_sign_of(const char *name, size_t *base)
{
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        size_t len = strlen(signs[i].marker);
        const char *p = strstr(name, signs[i].marker);

        if (!p || (p[len] && p[len] != '.'))
            continue;
        *base = (size_t)(p - name);
        if (*base >= 7 && !memcmp(p - 7, ".weight", 7))
            *base -= 7;
        return &signs[i];
    }
    return NULL;
}

int ckpt_refuse_quant(const char *dir, const struct ckpt_quant *q,
                      const struct ckpt_sign *sign, const char *tensor,
                      const struct err *also, struct err *e)
{
    /* Adapters in the tensors are no matter of the config's method. */
    bool own = sign && (!q->what[0] || !strcmp(sign->cure, MERGE));
    const char *what = own ? sign->what : q->what;
    char told[320], t[HP_CLEAN_MAX];

    if (tensor)
        snprintf(told, sizeof told, "tensor '%s'", hp_clean(t, tensor));
    else
        snprintf(told, sizeof told, "%s", q->where);
    return err_set(e, ERR_UNSUPPORTED,
                   "'%s' is %s, as %s tells: only plain BF16, F16 or F32 "
                   "weights are converted; %s%s%s",
                   dir, what, told, own ? sign->cure : ORIGINAL,
                   also && also->text[0] ? "; besides, " : "",
                   also ? also->text : "");
}

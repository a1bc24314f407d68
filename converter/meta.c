/*
 * meta.yaml, written through libyaml's emitter.
 */
#include "converter/meta.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "converter/base/num.h"
#include "converter/meta_priv.h"
#include "models/parts_gdn.h"

/* The emitter with a sticky error: libyaml copies all strings. */
struct out {
    yaml_emitter_t em;
    struct buf *buf;
    bool failed;
};

static int write_cb(void *data, unsigned char *p, size_t n)
{
    struct buf *b = data;

    buf_add(b, p, n);
    return b->failed ? 0 : 1;
}

static void emit(struct out *o, yaml_event_t *ev)
{
    if (!o->failed && !yaml_emitter_emit(&o->em, ev))
        o->failed = true;
}

static yaml_char_t *chars(const char *s)
{
    return (yaml_char_t *)(uintptr_t)s;
}

static void scalar(struct out *o, const char *s, yaml_scalar_style_t style)
{
    yaml_event_t ev;

    if (!yaml_scalar_event_initialize(&ev, NULL, NULL, chars(s), (int)strlen(s),
                                      1, 1, style))
        o->failed = true;
    else
        emit(o, &ev);
}

/* Words and shapes that YAML 1.1 or 1.2 reads as something else than the
 * string: these are quoted, all other text stays plain, since ANEMLL's shell
 * reader takes quotes as part of the value. Whatever begins with a digit or a
 * sign counts as a number. */
bool meta_plain(const char *s)
{
    static const char *const words[] = { "y",     "n",  "yes", "no",  "true",
                                         "false", "on", "off", "null" };
    char low[16] = "";
    size_t n = strlen(s);

    if (!n || strchr(" -?:,[]{}#&*!|>'\"%@`=<.+~", s[0]) || s[n - 1] == ' ' ||
        s[n - 1] == ':' || strstr(s, ": ") || strstr(s, " #") ||
        (s[0] >= '0' && s[0] <= '9'))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || (unsigned char)s[i] > 0x7e)
            return false;
    for (size_t i = 0; i < n && i < sizeof(low) - 1; i++)
        low[i] = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] + 32) : s[i];
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strcmp(low, words[i]))
            return false;
    return true;
}

static void text(struct out *o, const char *s)
{
    scalar(o, s,
           meta_plain(s) ? YAML_PLAIN_SCALAR_STYLE
                         : YAML_DOUBLE_QUOTED_SCALAR_STYLE);
}

static void plain(struct out *o, const char *s)
{
    scalar(o, s, YAML_PLAIN_SCALAR_STYLE);
}

static void integer(struct out *o, int64_t v)
{
    char t[32];

    snprintf(t, sizeof(t), "%" PRId64, v);
    plain(o, t);
}

/* With a point, always: without one YAML 1.1 reads 1e-05 as a string, and 1
 * as an integer, which typed readers do not take for a float. */
static void number(struct out *o, double v)
{
    char t[NUM_TEXT_MAX], with[NUM_TEXT_MAX + 2];
    size_t n;

    num_text(t, v);
    n = strcspn(t, "e");
    snprintf(with, sizeof(with), "%.*s%s%s", (int)n, t,
             strchr(t, '.') ? "" : ".0", t + n);
    plain(o, with);
}

static void begin(struct out *o, bool map, bool flow)
{
    yaml_event_t ev;
    int ok =
        map ? yaml_mapping_start_event_initialize(
                  &ev, NULL, NULL, 1,
                  flow ? YAML_FLOW_MAPPING_STYLE : YAML_BLOCK_MAPPING_STYLE)
            : yaml_sequence_start_event_initialize(
                  &ev, NULL, NULL, 1,
                  flow ? YAML_FLOW_SEQUENCE_STYLE : YAML_BLOCK_SEQUENCE_STYLE);

    if (!ok)
        o->failed = true;
    else
        emit(o, &ev);
}

static void end(struct out *o, bool map)
{
    yaml_event_t ev;

    if (map)
        yaml_mapping_end_event_initialize(&ev);
    else
        yaml_sequence_end_event_initialize(&ev);
    emit(o, &ev);
}

static void key_text(struct out *o, const char *key, const char *v)
{
    plain(o, key);
    text(o, v);
}

static void key_int(struct out *o, const char *key, int64_t v)
{
    plain(o, key);
    integer(o, v);
}

static void key_true(struct out *o, const char *key)
{
    plain(o, key);
    plain(o, "true");
}

/* A version such as 0.3.5 has two points and is a string in every YAML. */
static void key_version(struct out *o, const char *key, const char *v)
{
    plain(o, key);
    plain(o, v);
}

static void lut(struct out *o, const char *part, const struct cv_part *p)
{
    const struct cv_lut *l = &p->lut;
    char key[64], quant[32], mixed[32];

    snprintf(key, sizeof(key), "lut_%s", part);
    if (l->linear) {
        key_text(o, key, "none");
        snprintf(key, sizeof(key), "quant_%s", part);
        cv_quant_text(l, quant);
        key_text(o, key, quant);
        return;
    }
    if (l->bits)
        key_int(o, key, l->bits);
    else
        key_text(o, key, "none");
    if (!l->bits)
        return;
    snprintf(key, sizeof(key), "lut_%s_per_channel", part);
    key_int(o, key, (int64_t)l->group);
    if (!(p->mixed > 0))
        return;
    snprintf(key, sizeof(key), "lut_%s_mixed", part);
    snprintf(mixed, sizeof(mixed), "%.2f", p->mixed);
    plain(o, key);
    plain(o, mixed);
}

static void file_key(struct out *o, const char *key, const char *name)
{
    char t[192];

    snprintf(t, sizeof(t), "%s.mlmodelc", name);
    key_text(o, key, t);
}

static void layer_types(struct out *o, const struct hparams *hp)
{
    static const char *const names[] = { [HP_LAYER_FULL] = "full",
                                         [HP_LAYER_LINEAR] = "linear",
                                         [HP_LAYER_SLIDING] = "sliding" };

    plain(o, "layer_types");
    begin(o, false, true);
    for (int64_t i = 0; i < hp->layers; i++)
        plain(o, names[hp->layer_kind[i]]);
    end(o, false);
}

static void moe(struct out *o, const struct hparams *hp)
{
    if (!hp->experts)
        return;
    plain(o, "moe");
    begin(o, true, true);
    key_int(o, "experts", hp->experts);
    key_int(o, "experts_per_token", hp->experts_per_token);
    key_text(o, "evaluation", "dense");
    end(o, true);
}

/* What runtimes of recurrent packages must know. */
static void recurrent(struct out *o, const struct cv_job *j)
{
    if (!j->ckpt.hp.lin_value_heads)
        return;
    key_true(o, "recurrent_state");
    key_true(o, "prefill_full_batches_only");
    key_int(o, "gdn_chunk_size", gdn_chunk(j->opt.batch));
}

/* Positions that a local state holds, where they are not all. */
static int64_t local_length(const struct cv_job *j)
{
    for (int i = 0; i < j->n_states; i++)
        if (strstr(j->states[i].name, "_local"))
            return j->states[i].dims[2];
    return j->opt.ctx;
}

static void shared_layers(struct out *o, const struct hparams *hp)
{
    if (!hp->kv_shared_layers)
        return;
    plain(o, "kv_shared_layers");
    begin(o, true, true);
    for (int64_t i = hp->layers - hp->kv_shared_layers; i < hp->layers; i++) {
        integer(o, i);
        integer(o, hp_layer_kv_source(hp, i));
    }
    end(o, true);
}

/* Models with sliding layers. Those whose runtimes choose between functions
 * by the window need it under another key. */
static void windows(struct out *o, const struct cv_job *j)
{
    const struct hparams *hp = &j->ckpt.hp;

    if (!hp->window)
        return;
    if (hp->arch->rotates) {
        key_int(o, "sliding_window", hp->window);
        return;
    }
    key_int(o, "local_attention_window", hp->window);
    if (local_length(j) < j->opt.ctx)
        key_int(o, "local_cache_length", local_length(j));
}

/* What a plain transformer does not have. */
static void extensions(struct out *o, const struct cv_job *j)
{
    const struct hparams *hp = &j->ckpt.hp;

    recurrent(o, j);
    windows(o, j);
    if (hp->final_softcap > 0) {
        plain(o, "final_logit_softcap");
        number(o, hp->final_softcap);
    }
    if (hp->ple_width)
        key_int(o, "per_layer_inputs", hp->layers * hp->ple_width);
    shared_layers(o, hp);
    moe(o, hp);
    if (hp->lin_value_heads || hp->window)
        layer_types(o, hp);
}

static void states(struct out *o, const struct cv_job *j)
{
    plain(o, "states");
    begin(o, false, false);
    for (int i = 0; i < j->n_states; i++) {
        const struct state_desc *s = &j->states[i];
        int64_t n = s->layers ? s->n_layers : j->ckpt.hp.layers;

        begin(o, true, false);
        key_text(o, "name", s->name);
        plain(o, "shape");
        begin(o, false, true);
        for (int k = 0; k < s->rank; k++)
            integer(o, s->dims[k]);
        end(o, false);
        key_text(o, "dtype", "float16");
        plain(o, "layers");
        begin(o, false, true);
        for (int64_t k = 0; k < n; k++)
            integer(o, s->layers ? s->layers[k] : k);
        end(o, false);
        end(o, true);
    }
    end(o, false);
}

static void sampling(struct out *o, const struct assets *a)
{
    struct assets_sampling s;

    if (!assets_sampling(a, &s))
        return;
    plain(o, "recommended_sampling");
    begin(o, true, true);
    plain(o, "do_sample");
    plain(o, s.do_sample ? "true" : "false");
    plain(o, "temperature");
    number(o, s.temperature);
    plain(o, "top_p");
    number(o, s.top_p);
    key_int(o, "top_k", s.top_k);
    end(o, true);
}

static void parameters(struct out *o, const struct cv_job *j,
                       const struct assets *a)
{
    begin(o, true, false);
    key_int(o, "context_length", j->opt.ctx);
    key_int(o, "batch_size", j->opt.batch);
    lut(o, "embeddings", &j->parts[0]);
    lut(o, "ffn", &j->parts[1]);
    lut(o, "lmhead", &j->parts[j->n_parts - 1]);
    key_int(o, "num_chunks", j->chunks);
    key_text(o, "model_prefix", j->prefix);
    file_key(o, "embeddings", j->parts[0].name);
    file_key(o, "lm_head", j->parts[j->n_parts - 1].name);
    file_key(o, "ffn", j->parts[1].name);
    key_int(o, "split_lm_head", j->head_parts);
    key_int(o, "vocab_size", j->ckpt.hp.vocab);
    plain(o, "lm_head_chunk_sizes");
    begin(o, false, true);
    for (int i = 0; i < j->head_parts; i++)
        integer(o, j->head_sizes[i]);
    end(o, false);
    key_true(o, "prefill_dynamic_slice");
    key_true(o, "prefill_last_token_output");
    key_int(o, "hidden_size", j->ckpt.hp.hidden);
    key_int(o, "num_layers", j->ckpt.hp.layers);
    sampling(o, a);
    extensions(o, j);
    states(o, j);
    end(o, true);
}

static void model_info(struct out *o, const struct cv_job *j,
                       const struct assets *a)
{
    char d[256];

    snprintf(d, sizeof(d),
             "%s for the Apple Neural Engine\n"
             "Context length: %" PRId64 "\nBatch size: %" PRId64
             "\nChunks: %d\n",
             j->ckpt.hp.arch->name, j->opt.ctx, j->opt.batch, j->chunks);
    begin(o, true, false);
    plain(o, "model_info");
    begin(o, true, false);
    key_text(o, "name", j->name);
    key_version(o, "version", "0.3.5");
    plain(o, "description");
    scalar(o, d, YAML_LITERAL_SCALAR_STYLE);
    key_text(o, "license", "see the source model");
    key_text(o, "author", "anemll-convert");
    key_text(o, "framework", "Core ML");
    key_text(o, "language", "C");
    key_text(o, "architecture", j->ckpt.hp.arch->name);
    plain(o, "parameters");
    parameters(o, j, a);
    end(o, true);
    end(o, true);
}

int meta_text(const struct cv_job *j, const struct assets *a, struct buf *out,
              struct err *e)
{
    struct out o = { .buf = out };
    yaml_event_t ev;

    if (!yaml_emitter_initialize(&o.em))
        return err_set(e, ERR_NOMEM, "no memory for the YAML emitter");
    yaml_emitter_set_output(&o.em, write_cb, out);
    yaml_emitter_set_unicode(&o.em, 1);
    yaml_emitter_set_width(&o.em, -1);
    yaml_emitter_set_indent(&o.em, 2);
    yaml_stream_start_event_initialize(&ev, YAML_UTF8_ENCODING);
    emit(&o, &ev);
    yaml_document_start_event_initialize(&ev, NULL, NULL, NULL, 1);
    emit(&o, &ev);
    model_info(&o, j, a);
    yaml_document_end_event_initialize(&ev, 1);
    emit(&o, &ev);
    yaml_stream_end_event_initialize(&ev);
    emit(&o, &ev);
    yaml_emitter_flush(&o.em);
    yaml_emitter_delete(&o.em);
    buf_printf(out, META_SIGNATURE " %s\n", ANEMLL_VERSION);
    if (o.failed)
        return err_set(e, ERR_NOMEM, "meta.yaml could not be composed");
    return buf_ok(out, e);
}

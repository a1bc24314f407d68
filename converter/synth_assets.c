/*
 * Synthetic checkpoints: what stands beside the weights. The tokenizer knows
 * the 256 bytes and three ChatML tokens.
 */
#include <stdio.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/synth_priv.h"

static const char *const special_tokens[] = { "<|endoftext|>", "<|im_start|>",
                                              "<|im_end|>" };

static const char chat_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

int synth_save(const char *dir, const char *name, struct buf *b, struct err *e)
{
    char *path = io_join(dir, name, e);
    int rc = -1;

    if (path && !buf_ok(b, e))
        rc = io_write_file(path, b->data, b->len, e);
    mem_free(path);
    buf_release(b);
    return rc;
}

static int write_generation(const struct synth_shape *m, const char *dir,
                            struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_uint(&w, "bos_token_id", SYNTH_END_OF_TEXT);
    js_w_bool(&w, "do_sample", true);
    js_w_array(&w, "eos_token_id", false);
    js_w_uint(&w, NULL, SYNTH_IM_END);
    js_w_uint(&w, NULL, SYNTH_END_OF_TEXT);
    js_w_end(&w);
    js_w_uint(&w, "pad_token_id", SYNTH_END_OF_TEXT);
    js_w_double(&w, "temperature", 0.6);
    js_w_uint(&w, "top_k", 20);
    js_w_double(&w, "top_p", 0.95);
    js_w_string(&w, "transformers_version", m->version);
    js_w_end(&w);
    return synth_save(dir, "generation_config.json", &b, e);
}

/* The printable stand-in that byte-level tokenizers use for a byte: itself
 * where it prints, else the next of U+0100, U+0101, ... */
static void byte_text(char out[4], unsigned byte)
{
    unsigned c = byte, next = 0x100;

    for (unsigned b = 0; b <= byte; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) ||
                      (b >= 0xae && b <= 0xff);
        if (b == byte)
            c = prints ? b : next;
        else if (!prints)
            next++;
    }
    if (c < 0x80) {
        snprintf(out, 4, "%c", (int)c);
    } else {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        out[2] = 0;
    }
}

static void special_object(struct js_writer *w, const char *key, int i)
{
    js_w_object(w, key);
    if (!key)
        js_w_uint(w, "id", (uint64_t)(SYNTH_END_OF_TEXT + i));
    js_w_string(w, "content", special_tokens[i]);
    js_w_bool(w, "single_word", false);
    js_w_bool(w, "lstrip", false);
    js_w_bool(w, "rstrip", false);
    js_w_bool(w, "normalized", false);
    js_w_bool(w, "special", true);
    js_w_end(w);
}

static void byte_level(struct js_writer *w, const char *key)
{
    js_w_object(w, key);
    js_w_string(w, "type", "ByteLevel");
    js_w_bool(w, "add_prefix_space", false);
    js_w_bool(w, "trim_offsets", false);
    js_w_bool(w, "use_regex", false);
    js_w_end(w);
}

static void pre_tokenizer(struct js_writer *w)
{
    js_w_object(w, "pre_tokenizer");
    js_w_string(w, "type", "Sequence");
    js_w_array(w, "pretokenizers", false);
    js_w_object(w, NULL);
    js_w_string(w, "type", "Split");
    js_w_object(w, "pattern");
    js_w_string(w, "Regex",
                "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                "\\s+(?!\\S)|\\s+");
    js_w_end(w);
    js_w_string(w, "behavior", "Isolated");
    js_w_bool(w, "invert", false);
    js_w_end(w);
    byte_level(w, NULL);
    js_w_end(w);
    js_w_end(w);
}

static void bpe_model(struct js_writer *w)
{
    char text[4];

    js_w_object(w, "model");
    js_w_string(w, "type", "BPE");
    js_w_null(w, "dropout");
    js_w_null(w, "unk_token");
    js_w_string(w, "continuing_subword_prefix", "");
    js_w_string(w, "end_of_word_suffix", "");
    js_w_bool(w, "fuse_unk", false);
    js_w_bool(w, "byte_fallback", false);
    js_w_bool(w, "ignore_merges", false);
    js_w_object(w, "vocab");
    for (unsigned b = 0; b < 256; b++) {
        byte_text(text, b);
        js_w_uint(w, text, b);
    }
    js_w_end(w);
    js_w_array(w, "merges", false);
    js_w_end(w);
    js_w_end(w);
}

static int write_tokenizer(const char *dir, struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_string(&w, "version", "1.0");
    js_w_null(&w, "truncation");
    js_w_null(&w, "padding");
    js_w_array(&w, "added_tokens", false);
    for (int i = 0; i < SYNTH_TOKENS - SYNTH_END_OF_TEXT; i++)
        special_object(&w, NULL, i);
    js_w_end(&w);
    js_w_object(&w, "normalizer");
    js_w_string(&w, "type", "NFC");
    js_w_end(&w);
    pre_tokenizer(&w);
    byte_level(&w, "post_processor");
    byte_level(&w, "decoder");
    bpe_model(&w);
    js_w_end(&w);
    return synth_save(dir, "tokenizer.json", &b, e);
}

static int write_tokenizer_config(const struct synth_shape *m, const char *dir,
                                  struct err *e)
{
    struct buf b = BUF_INIT;
    struct js_writer w;
    char id[16];

    js_w_init(&w, &b);
    js_w_object(&w, NULL);
    js_w_bool(&w, "add_bos_token", false);
    js_w_bool(&w, "add_prefix_space", false);
    js_w_object(&w, "added_tokens_decoder");
    for (int i = 0; i < SYNTH_TOKENS - SYNTH_END_OF_TEXT; i++) {
        snprintf(id, sizeof id, "%d", SYNTH_END_OF_TEXT + i);
        special_object(&w, id, i);
    }
    js_w_end(&w);
    js_w_null(&w, "bos_token");
    js_w_string(&w, "chat_template", chat_template);
    js_w_bool(&w, "clean_up_tokenization_spaces", false);
    js_w_string(&w, "eos_token", "<|im_end|>");
    js_w_uint(&w, "model_max_length", m->positions);
    js_w_string(&w, "pad_token", "<|endoftext|>");
    js_w_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    js_w_null(&w, "unk_token");
    js_w_end(&w);
    return synth_save(dir, "tokenizer_config.json", &b, e);
}

int synth_write_assets(const struct synth_shape *m, const char *dir,
                       struct err *e)
{
    if (write_generation(m, dir, e) || write_tokenizer(dir, e) ||
        write_tokenizer_config(m, dir, e))
        return -1;
    return 0;
}

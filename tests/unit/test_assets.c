/*
 * Tokenizer and configuration files: which template wins, where generation
 * stops, what enters a package and what may not.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "converter/assets.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "t_conv.h"

/* A model folder "m" (vocabulary of 64) that each test fills. */
static void set_up(void)
{
    struct t_model m = t_model_tiny("qwen3");

    t_model_write(&m, "m");
}

TestSuite(assets, .init = set_up, .fini = t_conv_clean);

static struct ckpt ck;
static struct buf notes;

static struct assets *try_open(struct err *e)
{
    struct assets *a;

    buf_clear(&notes);
    cr_assert_eq(ckpt_open(&ck, t_conv_path("m"), 0, e), 0, "%s", e->text);
    a = assets_open(&ck, &notes, e);
    if (!a)
        ckpt_close(&ck);
    return a;
}

static struct assets *open_ok(void)
{
    struct err e = ERR_INIT;
    struct assets *a = try_open(&e);

    cr_assert_not_null(a, "%s", e.text);
    return a;
}

static void close_it(struct assets *a)
{
    assets_close(a);
    ckpt_close(&ck);
}

static void expect_refused(const char *says)
{
    struct err e = ERR_INIT;
    struct assets *a = try_open(&e);

    cr_expect_null(a, "accepted, '%s' was expected", says);
    cr_expect(strstr(e.text, says), "'%s' lacks '%s'", e.text, says);
    if (a)
        close_it(a);
}

static bool noted(const char *text)
{
    return strstr(buf_text(&notes), text) != NULL;
}

/* Writes the files of "m" into the fresh folder `out`. */
static void write_to(const char *out)
{
    struct err e = ERR_INIT;
    struct assets *a = open_ok();
    uint64_t planned, tokenizer_bytes;

    cr_assert_eq(mkdir(t_conv_path(out), 0777), 0);
    cr_assert_eq(assets_write(a, t_conv_path(out), &e), 0, "%s", e.text);
    cr_assert_eq(assets_measure(&ck, &planned, &tokenizer_bytes, &e), 0);
    cr_expect_geq(planned, t_conv_bytes(out));
    cr_expect_leq(planned, t_conv_bytes(out) + 20000);
    close_it(a);
}

static void expect_file(const char *name, const char *want)
{
    char *text = t_conv_text(name, NULL);

    cr_expect_str_eq(text, want);
    mem_free(text);
}

/* A member of a JSON file; js_free the document. */
static const struct js_node *member(const char *file, const char *key,
                                    struct js_doc **d)
{
    struct err e = ERR_INIT;

    *d = js_read_file(t_conv_path(file), 1u << 30, &e);
    cr_assert_not_null(*d, "%s", e.text);
    return js_get(js_root(*d), key);
}

static void expect_string(const char *file, const char *key, const char *want)
{
    const char *got = NULL;
    struct js_doc *d;

    (void)js_string(member(file, key, &d), &got);
    if (want)
        cr_expect(got && !strcmp(got, want), "%s %s: %s", file, key,
                  got ? got : "absent");
    else
        cr_expect_null(got, "%s %s: %s", file, key, got);
    js_free(d);
}

static const char tokenizer[] =
    "{\"added_tokens\": [{\"id\": 60, \"content\": \"<|im_end|>\"}, {\"id\": "
    "61, \"content\": \"<|endoftext|>\"}], \"pre_tokenizer\": {\"type\": "
    "\"Sequence\", \"pretokenizers\": [{\"type\": \"Split\"}, {\"type\": "
    "\"ByteLevel\"}]}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, "
    "\"b\": 1, \"</s>\": 2}, \"merges\": []}}";

static void put_tokenizer(void)
{
    t_conv_put("m/tokenizer.json", tokenizer);
    t_conv_put("m/tokenizer_config.json",
               "{\"tokenizer_class\": \"Qwen2Tokenizer\"}");
}

/* ---- sets of files ---- */

Test(assets, none_is_a_note)
{
    struct assets *a = open_ok();

    cr_expect(noted("no tokenizer: the package runs on token ids only"));
    close_it(a);
    write_to("out");
    cr_expect_str_eq(t_conv_list("out"), "config.json");
}

Test(assets, incomplete_sets_are_refused_with_the_cure)
{
    t_conv_put("m/tokenizer_config.json", "{}");
    expect_refused("has tokenizer_config.json but no tokenizer.json (nor "
                   "vocab.json with merges.txt): download");
    t_conv_put("m/vocab.json", "{\"a\": 0}");
    expect_refused("save_pretrained");
    t_conv_put("m/merges.txt", "#version: 0.2\n");
    close_it(open_ok());
    cr_expect(noted("Swift ones do not"));
    unlink(t_conv_path("m/merges.txt"));
    put_tokenizer();
    close_it(open_ok());
    cr_expect(!noted("Swift") && noted("no chat template"));
}

Test(assets, a_template_alone_is_no_tokenizer)
{
    t_conv_put("m/chat_template.jinja", "x");
    expect_refused("has chat_template.jinja but no tokenizer.json");
}

Test(assets, broken_files_are_refused_before_work)
{
    put_tokenizer();
    t_conv_put("m/special_tokens_map.json", "{\"a\": ");
    expect_refused("special_tokens_map.json");
    t_conv_put("m/special_tokens_map.json", "[]");
    expect_refused("is an array, an object is needed");
    unlink(t_conv_path("m/special_tokens_map.json"));
    t_conv_put("m/tokenizer.json", "{\"model\": {\"vocab\": {}}}");
    expect_refused("holds no vocabulary");
    unlink(t_conv_path("m/tokenizer.json"));
    cr_assert_eq(symlink("../blobs/gone", t_conv_path("m/tokenizer.json")), 0);
    expect_refused("is a link to '../blobs/gone'");
    unlink(t_conv_path("m/tokenizer.json"));
    t_conv_put("m/tokenizer.json",
               "version https://git-lfs.github.com/spec/v1\n"
               "oid sha256:00\nsize 11422654\n");
    expect_refused("git-lfs pointer");
}

/* ---- templates ---- */

static void expect_template(const char *out, const char *want)
{
    write_to(out);
    {
        char file[100];

        snprintf(file, sizeof file, "%s/tokenizer_config.json", out);
        expect_string(file, "chat_template", want);
    }
}

Test(assets, template_in_the_config_stays_to_the_byte)
{
    static const char text[] =
        "{ \"chat_template\":\"{{ \\u00e9 }}\\/\" ,\"n\": 1e30, "
        "\"tokenizer_class\": \"Qwen2Tokenizer\", \"x\": NaN}";

    put_tokenizer();
    t_conv_put("m/tokenizer_config.json", text);
    write_to("out");
    expect_file("out/tokenizer_config.json", text);
    cr_expect_str_eq(t_conv_list("out"),
                     "config.json tokenizer.json tokenizer_config.json");
}

Test(assets, template_file_wins_and_is_spliced)
{
    put_tokenizer();
    t_conv_put("m/chat_template.jinja", "file \"1\"\n");
    expect_template("a", "file \"1\"\n");
    expect_file("a/chat_template.jinja", "file \"1\"\n");
    cr_expect(!noted("differ"));
    t_conv_put("m/tokenizer_config.json",
               "{\"chat_template\": \"member\", \"b\": 2}");
    expect_template("b", "file \"1\"\n");
    cr_expect(noted("the file wins"));
    t_conv_put("m/chat_template.jinja", "member");
    expect_template("c", "member");
    cr_expect(!noted("differ"));
}

Test(assets, template_of_the_processor_comes_last)
{
    put_tokenizer();
    t_conv_put("m/chat_template.json", "{\"chat_template\": \"processor\"}");
    expect_template("a", "processor");
    expect_file("a/chat_template.json", "{\"chat_template\": \"processor\"}");
    t_conv_put("m/tokenizer_config.json", "{\"chat_template\": \"member\"}");
    expect_template("b", "member");
    t_conv_put("m/tokenizer_config.json", "{\"chat_template\": null}");
    expect_template("c", "processor");
}

Test(assets, lists_of_templates_keep_every_one)
{
    put_tokenizer();
    t_conv_put("m/tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": "
               "\"T\"}, {\"name\": \"default\", \"template\": \"D\"}]}");
    expect_template("a", "D");
    expect_file("a/additional_chat_templates/tool_use.jinja", "T");
    expect_file("a/chat_template.jinja", "D");
    cr_expect_str_eq(t_conv_list("a/additional_chat_templates"),
                     "tool_use.jinja");
    t_conv_put("m/tokenizer_config.json",
               "{\"chat_template\": {\"default\": \"D2\", \"rag\": \"R\"}}");
    expect_template("b", "D2");
    expect_file("b/additional_chat_templates/rag.jinja", "R");
    t_conv_put("m/tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": "
               "\"R\"}]}");
    expect_template("c", "R");
    cr_expect(noted("without a default: 'rag' is used"));
}

Test(assets, folder_of_templates_is_copied)
{
    put_tokenizer();
    t_conv_put("m/chat_template.jinja", "D");
    t_conv_put("m/additional_chat_templates/rag.jinja", "R");
    t_conv_put("m/additional_chat_templates/notes.txt", "no");
    t_conv_put("blob", "T");
    cr_assert_eq(symlink("../../blob",
                         t_conv_path("m/additional_chat_templates/t.jinja")),
                 0);
    write_to("out");
    cr_expect_str_eq(t_conv_list("out/additional_chat_templates"),
                     "rag.jinja t.jinja");
    expect_file("out/additional_chat_templates/t.jinja", "T");
    /* a list's entry does not replace the file */
    t_conv_put("m/tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": "
               "\"other\"}]}");
    write_to("out2");
    expect_file("out2/additional_chat_templates/rag.jinja", "R");
    expect_file("out2/chat_template.jinja", "D");
}

Test(assets, templates_that_are_none)
{
    static const char *const bad[] = {
        "{\"chat_template\": 3}",
        "{\"chat_template\": [3]}",
        "{\"chat_template\": [{\"name\": \"x\"}]}",
        "{\"chat_template\": {\"x\": null}}",
        "{\"chat_template\": {\"../x\": \"t\"}}",
        "{\"chat_template\": {\"a/b\": \"t\"}}",
        "{\"chat_template\": {\".x\": \"t\"}}",
    };

    put_tokenizer();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        t_conv_put("m/tokenizer_config.json", bad[i]);
        expect_refused(i < 4 ? "chat_template" : "cannot be a file's");
    }
    t_conv_put("m/tokenizer_config.json", "{}");
    t_conv_put("m/chat_template.jinja", "a\xff"
                                        "b");
    expect_refused("no UTF-8");
}

Test(assets, a_config_is_made_where_there_is_none)
{
    t_conv_put("m/tokenizer.json", tokenizer);
    t_conv_put("m/chat_template.jinja", "T");
    write_to("out");
    cr_expect(noted("the package gets a small one"));
    expect_string("out/tokenizer_config.json", "chat_template", "T");
    expect_string("out/tokenizer_config.json", "tokenizer_class",
                  "Qwen2Tokenizer");
    expect_string("out/tokenizer_config.json", "eos_token", "</s>");
    expect_string("out/tokenizer_config.json", "bos_token", "b");
}

/* ---- end tokens ---- */

static void set_config(const char *eos, const char *rest)
{
    char *text = t_conv_text("m/config.json", NULL), out[3000];
    char *p = strstr(text, "\"eos_token_id\"");
    static char first[2000];

    if (!first[0])
        snprintf(first, sizeof first, "%.*s", (int)(p - text), text);
    snprintf(out, sizeof out, "%s%s%s}\n", first, eos, rest);
    t_conv_put("m/config.json", out);
    mem_free(text);
}

static void expect_stops(size_t n, ...)
{
    struct assets *a = open_ok();
    const int64_t *ids;
    size_t got = assets_stop_tokens(a, &ids);
    va_list ap;

    cr_expect_eq(got, n, "%zu end tokens", got);
    va_start(ap, n);
    for (size_t i = 0; i < n && i < got; i++) {
        int want = va_arg(ap, int);

        cr_expect_eq(ids[i], want, "%zu: %" PRId64, i, ids[i]);
    }
    va_end(ap);
    close_it(a);
}

Test(assets, end_tokens_are_united_in_order)
{
    put_tokenizer();
    expect_stops(1, 2);
    t_conv_put("m/generation_config.json", "{\"eos_token_id\": [61, 2, 7]}");
    expect_stops(3, 2, 61, 7);
    t_conv_put("m/tokenizer_config.json",
               "{\"eos_token\": {\"content\": \"<|im_end|>\"}}");
    expect_stops(4, 2, 61, 7, 60);
    set_config("\"eos_token_id\": [9, 61]", "");
    expect_stops(5, 9, 61, 2, 7, 60);
    set_config("\"eos_token_id\": null", "");
    expect_stops(4, 61, 2, 7, 60);
    t_conv_put("m/generation_config.json", "{}");
    t_conv_put("m/tokenizer_config.json", "{\"eos_token\": \"a\"}");
    expect_stops(1, 0); /* from the vocabulary */
}

/* The text model's settings one level down, as multimodal models have them. */
static void nest_config(void)
{
    char *text = t_conv_text("m/config.json", NULL), out[4000];

    snprintf(out, sizeof out,
             "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": "
             "\"qwen3\", \"eos_token_id\": [9], \"text_config\": %s}",
             text);
    t_conv_put("m/config.json", out);
    mem_free(text);
}

Test(assets, nested_configs_are_lifted)
{
    put_tokenizer();
    t_conv_put("m/generation_config.json", "{\"eos_token_id\": [61, 9]}");
    nest_config();
    expect_stops(3, 9, 2, 61);
    write_to("out");
    {
        char *text = t_conv_text("out/config.json", NULL);

        cr_expect(strstr(text, "\"eos_token_id\": [9, 2, 61], \"text_config\""),
                  "%s", text);
        cr_expect(strstr(text, "},\"bos_token_id\": 1,"), "%s", text);
        mem_free(text);
    }
}

Test(assets, end_tokens_go_to_the_top_of_the_config)
{
    put_tokenizer();
    set_config("\"eos_token_id\": 2", ", \"z\": 1e30");
    t_conv_put("m/generation_config.json",
               "{\"eos_token_id\": [61, 2], \"pad_token_id\": 61, "
               "\"bos_token_id\": 1}");
    write_to("out");
    {
        char *text = t_conv_text("out/config.json", NULL);

        cr_expect(strstr(text, "\"eos_token_id\": [2, 61], \"z\": 1e30,"), "%s",
                  text);
        cr_expect(strstr(text, "\"pad_token_id\": 61"), "%s", text);
        cr_expect(strstr(text, "\"bos_token_id\": 1,"), "%s", text);
        cr_expect(strstr(text, "\"tokenizer_class\": \"Qwen2Tokenizer\""), "%s",
                  text);
        mem_free(text);
    }
}

Test(assets, complete_end_tokens_leave_the_text_alone)
{
    put_tokenizer();
    set_config("\"eos_token_id\":  [ 2,61 ]", "");
    t_conv_put("m/generation_config.json", "{\"eos_token_id\": 61}");
    write_to("out");
    {
        char *text = t_conv_text("out/config.json", NULL);

        cr_expect(strstr(text, "\"eos_token_id\":  [ 2,61 ],"), "%s", text);
        mem_free(text);
    }
}

Test(assets, end_tokens_that_cannot_be)
{
    char many[2000] = "{\"eos_token_id\": [";

    put_tokenizer();
    t_conv_put("m/generation_config.json", "{\"eos_token_id\": 64}");
    expect_refused("generation_config.json: end token 64 is beyond the "
                   "vocabulary of 64 rows");
    t_conv_put("m/generation_config.json", "{\"eos_token_id\": \"2\"}");
    expect_refused("eos_token_id is a string");
    t_conv_put("m/generation_config.json", "{\"eos_token_id\": [2, null]}");
    expect_refused("eos_token_id holds null");
    for (int i = 0; i < 64; i++)
        snprintf(many + strlen(many), 8, "%d%s", i, i < 63 ? "," : "]}");
    t_conv_put("m/generation_config.json", many);
    close_it(open_ok()); /* 64 are the limit, and all of this vocabulary */
    t_conv_put("m/generation_config.json", "{\"eos_token_id\": []}");
    t_conv_put("m/tokenizer_config.json", "{\"eos_token\": \"gone\"}");
    set_config("\"eos_token_id\": null", "");
    close_it(open_ok());
    cr_expect(noted("eos_token 'gone'") && noted("names no end token"));
}

Test(assets, a_turn_end_that_does_not_stop_is_a_warning)
{
    put_tokenizer();
    t_conv_put("m/chat_template.jinja", "{{ x }}<|im_end|>\n");
    close_it(open_ok());
    cr_expect(noted("warning: the chat template ends turns with '<|im_end|>' "
                    "(60)"));
    t_conv_put("m/tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}");
    close_it(open_ok());
    cr_expect(!noted("ends turns"));
}

/* ---- ids ---- */

Test(assets, ids_beyond_the_rows)
{
    put_tokenizer();
    t_conv_put("m/added_tokens.json", "{\"<image>\": 64, \"<audio>\": 70}");
    close_it(open_ok());
    cr_expect(noted("2 ids beyond the vocabulary of 64 rows, the first is 64"),
              "%s", buf_text(&notes));
    t_conv_put("m/chat_template.jinja", "{{ m }}<image>");
    expect_refused("writes '<image>', whose id 64 is beyond");
    unlink(t_conv_path("m/chat_template.jinja"));
    t_conv_put("m/tokenizer_config.json", "{\"bos_token\": \"<audio>\"}");
    expect_refused("begin token 70");
    t_conv_put("m/tokenizer_config.json", "{\"eos_token\": \"<audio>\"}");
    expect_refused("end token 70");
}

Test(assets, added_tokens_may_not_contradict)
{
    put_tokenizer();
    t_conv_put("m/added_tokens.json", "{\"<|im_end|>\": 60}");
    close_it(open_ok());
    t_conv_put("m/added_tokens.json", "{\"<|im_end|>\": 59}");
    expect_refused("added token '<|im_end|>' has the id 59 in "
                   "added_tokens.json and 60 in tokenizer.json");
    t_conv_put("m/added_tokens.json", "{}");
    t_conv_put("m/tokenizer_config.json",
               "{\"added_tokens_decoder\": {\"60\": {\"content\": \"<x>\"}}}");
    expect_refused("added token 60 is '<x>' in tokenizer_config.json and "
                   "'<|im_end|>' in tokenizer.json");
}

/* ---- classes ---- */

Test(assets, classes_that_swift_does_not_know)
{
    put_tokenizer();
    t_conv_put("m/tokenizer_config.json",
               "{\"tokenizer_class\": \"TokenizersBackend\", \"x\": 1}");
    write_to("a");
    expect_file("a/tokenizer_config.json",
                "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"x\": 1,"
                "\"source_tokenizer_class\": \"TokenizersBackend\"}");
    expect_string("a/config.json", "tokenizer_class", "Qwen2Tokenizer");
    expect_string("a/config.json", "source_tokenizer_class", NULL);
    t_conv_put("m/tokenizer_config.json",
               "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}");
    write_to("b");
    expect_file("b/tokenizer_config.json",
                "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}");
    expect_string("b/config.json", "tokenizer_class",
                  "PreTrainedTokenizerFast");
}

/* LlamaTokenizer means a space in front: wrong for byte-level files. */
Test(assets, llama_by_the_tokenizers_kind)
{
    struct t_model m = t_model_tiny("llama");

    t_model_write(&m, "m");
    t_conv_put("m/tokenizer.json", tokenizer);
    t_conv_put("m/tokenizer_config.json",
               "{\"tokenizer_class\": \"TokenizersBackend\"}");
    write_to("a");
    expect_string("a/tokenizer_config.json", "tokenizer_class",
                  "PreTrainedTokenizerFast");
    t_conv_put("m/tokenizer.json",
               "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}, "
               "\"pre_tokenizer\": null}");
    write_to("b");
    expect_string("b/tokenizer_config.json", "tokenizer_class",
                  "LlamaTokenizer");
}

/* ---- leaks ---- */

Test(assets, no_place_on_a_machine_enters)
{
    put_tokenizer();
    set_config("\"eos_token_id\": 2",
               ", \"_name_or_path\": \"/home/zz-secret/x\", \"other\": "
               "{\"_name_or_path\": \"zz-secret/hub\", \"k\": 1}, "
               "\"cache\": \"/mnt/zz-secret/c\"");
    t_conv_put("m/tokenizer_config.json",
               "{\"name_or_path\": \"/srv/zz-secret\", \"tokenizer_file\": "
               "\"C:\\\\zz-secret\\\\t.json\", \"eos_token\": \"</s>\", "
               "\"added_tokens_decoder\": {\"60\": {\"content\": "
               "\"<|im_end|>\"}}, \"chat_template\": \"/{{ x }}/\"}");
    t_conv_put("m/special_tokens_map.json",
               "{\"a\": \"~/zz-secret\", \"eos_token\": \"/a/b\"}");
    t_conv_put("m/generation_config.json",
               "{\"assistant\": [\"/x/zz-secret\"], \"top_k\":1e30}");
    t_conv_put("m/added_tokens.json", "{ \"/home/code\":62 }");
    write_to("out");
    expect_file("out/special_tokens_map.json", "{ \"eos_token\": \"/a/b\"}");
    expect_file("out/generation_config.json", "{ \"top_k\":1e30}");
    expect_file("out/added_tokens.json", "{ \"/home/code\":62 }");
    expect_string("out/tokenizer_config.json", "chat_template", "/{{ x }}/");
    {
        char cmd[700];

        snprintf(cmd, sizeof cmd, "grep -rq zz-secret '%s'",
                 t_conv_path("out"));
        cr_expect_neq(system(cmd), 0, "a path leaked");
    }
    {
        struct js_doc *d;
        const struct js_node *n = member("out/config.json", "other", &d);

        cr_expect_eq(js_count(n), 1);
        cr_expect_null(js_get(js_root(d), "cache"));
        js_free(d);
    }
}

/* The whole package of a model in a folder that must not be told. */
Test(assets, no_place_in_a_whole_package)
{
    struct cv_options o;
    char cmd[700];

    cr_assert_eq(mkdir(t_conv_path("zz-secret"), 0777), 0);
    cr_assert_eq(rename(t_conv_path("m"), t_conv_path("zz-secret/m")), 0);
    o = t_conv_options("zz-secret/m");
    t_conv_run(&o, "out");
    snprintf(cmd, sizeof cmd, "grep -rq -e zz-secret -e '%s' '%s'",
             t_conv_dir() + 1, t_conv_path("out"));
    cr_expect_neq(system(cmd), 0, "a path leaked");
}

/* ---- copies ---- */

Test(assets, links_become_files_and_bytes_stay)
{
    struct stat st;

    put_tokenizer();
    cr_assert_eq(rename(t_conv_path("m/tokenizer.json"), t_conv_path("blob")),
                 0);
    cr_assert_eq(symlink("../blob", t_conv_path("link")), 0);
    cr_assert_eq(symlink("../blob", t_conv_path("m/tokenizer.json")), 0);
    t_conv_put("m/merges.txt", "a b\r\n\n");
    t_conv_put("m/preprocessor_config.json", "{\"a\":[1 ,2.50,NaN]}");
    t_conv_put("m/README.md", "not this");
    write_to("out");
    cr_assert_eq(lstat(t_conv_path("out/tokenizer.json"), &st), 0);
    cr_expect(S_ISREG(st.st_mode) && st.st_nlink == 1);
    expect_file("out/tokenizer.json", tokenizer);
    expect_file("out/merges.txt", "a b\r\n\n");
    expect_file("out/preprocessor_config.json", "{\"a\":[1 ,2.50,NaN]}");
    cr_expect_str_eq(t_conv_list("out"),
                     "config.json merges.txt preprocessor_config.json "
                     "tokenizer.json tokenizer_config.json");
}

/* What Python writes and JSON writers lose. */
Test(assets, odd_numbers_survive)
{
    char *text;

    put_tokenizer();
    set_config("\"eos_token_id\": 2",
               ", \"a\": NaN, \"b\": -Infinity, \"c\": "
               "1000000000000000019884624838656, \"d\": 1.10, \"e\": 1E5");
    t_conv_put("m/tokenizer_config.json",
               "{\"model_max_length\": 1000000000000000019884624838656}");
    write_to("out");
    text = t_conv_text("out/config.json", NULL);
    cr_expect(strstr(text, "\"eos_token_id\": 2, \"a\": NaN, \"b\": -Infinity, "
                           "\"c\": 1000000000000000019884624838656, \"d\": "
                           "1.10, \"e\": 1E5,"),
              "%s", text);
    mem_free(text);
    text = t_conv_text("out/tokenizer_config.json", NULL);
    cr_expect(strstr(text, "1000000000000000019884624838656"), "%s", text);
    mem_free(text);
}

/* ---- sampling ---- */

static bool sampling_of(const char *generation, struct assets_sampling *s)
{
    struct assets *a;
    bool yes;

    t_conv_put("m/generation_config.json", generation);
    a = open_ok();
    yes = assets_sampling(a, s);
    close_it(a);
    return yes;
}

Test(assets, sampling_needs_all_three_in_range)
{
    struct assets_sampling s;

    put_tokenizer();
    cr_expect(sampling_of("{\"do_sample\": true, \"temperature\": 0.6, "
                          "\"top_p\": 0.95, \"top_k\": 20}",
                          &s) &&
              s.do_sample && s.top_k == 20);
    cr_expect(
        sampling_of("{\"temperature\": 1, \"top_p\": 1, \"top_k\": 0}", &s) &&
        !s.do_sample);
    cr_expect(!sampling_of("{\"temperature\": 1, \"top_k\": 20}", &s));
    cr_expect(!sampling_of("{\"temperature\": NaN, \"top_p\": 1, \"top_k\": "
                           "20}",
                           &s));
    cr_expect(
        !sampling_of("{\"temperature\": 1, \"top_p\": 2, \"top_k\": 20}", &s));
    cr_expect(!sampling_of("{\"temperature\": 1, \"top_p\": 1, \"top_k\": "
                           "-1}",
                           &s));
}

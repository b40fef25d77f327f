// SPDX-License-Identifier: Apache-2.0
// Runs an exported folder with transformers.js. Takes one JSON document on standard input: {folder, task, texts} or
// {folder, task, ids, mask, steps}; gives {vectors} or {ids} on the last line of standard output. A chat also gives the
// ids of its prompts, and the answer to the first text by the pipeline. With pictures there are {pixels, shape} as well.
import path from "node:path";
import {
  AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM, Tensor, env, pipeline,
} from "@huggingface/transformers";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const order = JSON.parse(Buffer.concat(chunks).toString("utf8"));

env.allowRemoteModels = false;
env.localModelPath = path.dirname(order.folder);
const name = path.basename(order.folder);

function matrix(rows) {
  const flat = BigInt64Array.from(rows.flat(), BigInt);
  return new Tensor("int64", flat, [rows.length, rows[0].length]);
}

async function embed() {
  const extract = await pipeline("feature-extraction", name);
  const vectors = await extract(order.texts, { pooling: "mean", normalize: true });
  return { vectors: vectors.tolist() };
}

async function generate(model, more = {}) {
  const found = await model.generate({
    ...more,
    input_ids: matrix(order.ids),
    attention_mask: matrix(order.mask),
    max_new_tokens: order.steps,
    do_sample: false,
  });
  const rows = found.tolist().map((row) => row.slice(order.ids[0].length).map(Number));
  return { ids: rows };
}

async function chat() {
  const write = await pipeline("text-generation", name);
  const { model, tokenizer } = write;
  const texts = order.texts.map((content) => tokenizer.apply_chat_template(
    [{ role: "user", content }], { tokenize: false, add_generation_prompt: true },
  ));
  tokenizer.padding_side = "left";
  const encoded = tokenizer(texts, { padding: true, add_special_tokens: false });
  order.ids = encoded.input_ids.tolist().map((row) => row.map(Number));
  order.mask = encoded.attention_mask.tolist().map((row) => row.map(Number));
  const [{ generated_text: said }] = await write(
    [{ role: "user", content: order.texts[0] }], { max_new_tokens: order.steps, do_sample: false },
  );
  return { prompts: order.ids, answer: said.at(-1).content, ...(await generate(model)) };
}

async function decode() {
  return await generate(await AutoModelForCausalLM.from_pretrained(name));
}

async function look() {
  const model = await AutoModelForImageTextToText.from_pretrained(name);
  if (!order.pixels.length) return await generate(model);
  return await generate(model, { pixel_values: new Tensor("float32", Float32Array.from(order.pixels), order.shape) });
}

async function rewrite() {
  const model = await AutoModelForSeq2SeqLM.from_pretrained(name);
  const found = await model.generate({
    input_ids: matrix(order.ids),
    attention_mask: matrix(order.mask),
    max_new_tokens: order.steps,
    do_sample: false,
  });
  return { ids: found.tolist().map((row) => row.map(Number)) };
}

const result = await { embed, decode, chat, look, rewrite }[order.task]();
console.log(JSON.stringify(result));

// Asks a Mac what kit.json says of the package beside it, and answers in one
// line: CONFIRMED or REFUTED.
//
//   swift -O check.swift [ne|gpu|all]
//
// Needs macOS 15 and Xcode's command-line tools, nothing else. Loads the
// .mlmodelc where there is one and compiles the .mlpackage where there is not.
import CoreML
import Foundation

struct Call: Decodable {
    let function: String
    let first: Int
    let count: Int
    let top1: Int?
    let margin: Double?
    let norm: Double?
    let digest: [Double]?
}

struct Prompt: Decodable {
    let tokens: [Int32]
    let calls: [Call]
}

struct Kit: Decodable {
    let context_length: Int
    let vocab_size: Int
    let parts: [String]
    let limit: Double
    let decided: Double
    let prompts: [Prompt]
}

struct Failure: Error, CustomStringConvertible {
    let description: String
}

func mix(_ value: UInt32) -> UInt32 {
    var x = value
    x ^= x >> 16
    x = x &* 0x7feb_352d
    x ^= x >> 15
    x = x &* 0x846c_a68b
    return x ^ (x >> 16)
}

final class Judge {
    let kit: Kit
    var rows = 0, equal = 0, decided = 0, decidedEqual = 0
    var worst = 0.0
    var first: String?

    init(_ kit: Kit) {
        self.kit = kit
    }

    func row(_ prompt: Int, _ call: Call, _ logits: [Float]) {
        guard let expected = call.top1, let margin = call.margin, let norm = call.norm,
            let digest = call.digest
        else { return }
        let place = "prompt \(prompt), position \(call.first + call.count - 1)"
        rows += 1
        if logits.count != kit.vocab_size || logits.contains(where: { !$0.isFinite }) {
            worst = .infinity
            first = first ?? "\(place): NaN, Inf or another size"
            return
        }
        var square = 0.0
        for k in 0..<digest.count {
            var sum = 0.0
            for i in 0..<logits.count {
                let plus = mix(UInt32(truncatingIfNeeded: digest.count * i + k)) & 1 == 1
                sum += plus ? Double(logits[i]) : -Double(logits[i])
            }
            square += (sum - digest[k]) * (sum - digest[k])
        }
        let error = (square / Double(digest.count)).squareRoot() / max(norm, 1e-30)
        worst = max(worst, error)
        var best = 0
        for i in 1..<logits.count where logits[i] > logits[best] {
            best = i
        }
        let rms = norm / Double(kit.vocab_size).squareRoot()
        let isDecided = margin >= kit.decided * rms
        let same = best == expected
        equal += same ? 1 : 0
        decided += isDecided ? 1 : 0
        decidedEqual += isDecided && same ? 1 : 0
        if (error > kit.limit || (isDecided && !same)) && first == nil {
            first = "\(place): token \(best) instead of \(expected), error \(error)"
        }
    }

    var good: Bool {
        return rows > 0 && worst <= kit.limit && decided == decidedEqual
    }

    func line(_ how: String) -> String {
        let text =
            "\(good ? "CONFIRMED" : "REFUTED"): \(rows) rows, top-1 \(equal) of \(rows) "
            + "(decided \(decidedEqual) of \(decided)), worst error \(worst); \(how)"
        return first == nil ? text : text + "; first: \(first!)"
    }
}

func halves(_ shape: [Int]) throws -> MLMultiArray {
    return try MLMultiArray(shape: shape.map { NSNumber(value: $0) }, dataType: .float16)
}

func integers(_ shape: [Int], _ values: [Int32]) throws -> MLMultiArray {
    let array = try MLMultiArray(shape: shape.map { NSNumber(value: $0) }, dataType: .int32)
    for (i, v) in values.enumerated() {
        array[i] = NSNumber(value: v)
    }
    return array
}

// Row by row, whatever the strides: outputs may be padded.
func floats(_ array: MLMultiArray) -> [Float] {
    return MLShapedArray<Float>(converting: array).scalars
}

final class Models {
    let folder: URL
    let units: MLComputeUnits
    var cache: [String: MLModel] = [:]
    var compiled: [String: URL] = [:]

    init(_ folder: URL, _ units: MLComputeUnits) {
        self.folder = folder
        self.units = units
    }

    func place(_ stem: String) throws -> URL {
        if let url = compiled[stem] {
            return url
        }
        var url = folder.appendingPathComponent(stem + ".mlmodelc")
        if !FileManager.default.fileExists(atPath: url.path) {
            url = try MLModel.compileModel(at: folder.appendingPathComponent(stem + ".mlpackage"))
        }
        compiled[stem] = url
        return url
    }

    func load(_ stem: String, _ function: String?) throws -> MLModel {
        let key = stem + "/" + (function ?? "")
        if let model = cache[key] {
            return model
        }
        let configuration = MLModelConfiguration()
        configuration.computeUnits = units
        if let function = function {
            configuration.functionName = function
        }
        let url = try place(stem)
        do {
            let model = try MLModel(contentsOf: url, configuration: configuration)
            cache[key] = model
            return model
        } catch {
            throw Failure(description: "\(url.lastPathComponent), \(function ?? "main"): \(error)")
        }
    }
}

func features(_ values: [String: MLMultiArray]) throws -> MLDictionaryFeatureProvider {
    return try MLDictionaryFeatureProvider(
        dictionary: values.mapValues { MLFeatureValue(multiArray: $0) })
}

func output(_ provider: MLFeatureProvider, _ name: String) throws -> MLMultiArray {
    guard let array = provider.featureValue(for: name)?.multiArrayValue else {
        throw Failure(description: "no output '\(name)'")
    }
    return array
}

func lastRow(_ array: MLMultiArray) throws -> MLMultiArray {
    let rows = array.shape[1].intValue
    let width = array.shape[2].intValue
    if rows == 1 {
        return array
    }
    let values = floats(array)
    let row = try halves([1, 1, width])
    for i in 0..<width {
        row[i] = NSNumber(value: values[(rows - 1) * width + i])
    }
    return row
}

func mask(_ call: Call, _ context: Int) throws -> MLMultiArray {
    let array = try halves([1, 1, call.count, context])
    for row in 0..<call.count {
        for column in 0..<context {
            array[row * context + column] =
                NSNumber(value: column <= call.first + row ? Float(0) : -Float.infinity)
        }
    }
    return array
}

func run(_ kit: Kit, _ models: Models, _ judge: Judge) throws {
    let chunks = kit.parts.dropFirst().dropLast()
    for (number, prompt) in kit.prompts.enumerated() {
        let state = try models.load(chunks.first!, "prefill").makeState()
        for call in prompt.calls {
            let ids = Array(prompt.tokens[call.first..<call.first + call.count])
            let embedded = try models.load(kit.parts[0], nil).prediction(
                from: features(["input_ids": integers([1, call.count], ids)]))
            var hidden = try output(embedded, "hidden_states")
            var feed = [
                "position_ids": try integers(
                    [call.count], (0..<call.count).map { Int32(call.first + $0) }),
                "causal_mask": try mask(call, kit.context_length),
                "current_pos": try integers([1], [Int32(call.first)]),
            ]
            if let perLayer = embedded.featureValue(for: "per_layer_inputs")?.multiArrayValue {
                feed["per_layer_inputs"] = perLayer
            }
            for stem in chunks {
                feed["hidden_states"] = hidden
                let out = try models.load(stem, call.function).prediction(
                    from: features(feed), using: state)
                hidden = try output(out, "output_hidden_states")
            }
            if call.top1 == nil {
                continue
            }
            let head = try models.load(kit.parts.last!, nil).prediction(
                from: features(["hidden_states": lastRow(hidden)]))
            var logits: [Float] = []
            for i in 1...head.featureNames.count {
                logits += floats(try output(head, "logits\(i)"))
            }
            judge.row(number, call, logits)
        }
    }
}

let here = URL(fileURLWithPath: CommandLine.arguments[0]).deletingLastPathComponent()
let named = CommandLine.arguments.count > 1 ? CommandLine.arguments[1] : "ne"
let units: MLComputeUnits =
    named == "gpu" ? .cpuAndGPU : named == "all" ? .all : .cpuAndNeuralEngine
let system = "macOS \(ProcessInfo.processInfo.operatingSystemVersionString), units \(named)"
var good = false
do {
    let data = try Data(contentsOf: here.appendingPathComponent("kit.json"))
    let kit = try JSONDecoder().decode(Kit.self, from: data)
    let judge = Judge(kit)
    try run(kit, Models(here.appendingPathComponent("package"), units), judge)
    good = judge.good
    print(judge.line(system))
} catch {
    let why = "\(error)".split(whereSeparator: { $0.isNewline }).joined(separator: " ")
    print("REFUTED: \(why); \(system)")
}
exit(good ? 0 : 1)

{{/* The second network as pods see it. What the networks are made of is in _cni.tpl. */}}

{{/*
fabric.networks, sorted by name, as JSON {"networks": [...]}: each has name, spec (networkDefaults with its own keys), nad and
namespace of its NetworkAttachmentDefinition (namespace is empty for the pod's own), and owner: chart, operator or other.
A SriovNetwork lives in the operator's namespace, so its name, which is the definition's too, holds ours. Usage: $
*/}}
{{- define "llm-ray.networks" -}}
{{- $networks := list -}}
{{- $defaults := include "llm-ray.overlay" (list dict .Values.fabric.networkDefaults) | fromYaml -}}
{{- range $name := eq .Values.fabric.type "none" | ternary list (keys (.Values.fabric.networks | default dict) | sortAlpha) -}}
{{- $spec := include "llm-ray.overlay" (list $defaults (index $.Values.fabric.networks $name | default dict)) | fromYaml -}}
{{- $network := dict "name" $name "spec" $spec "owner" "chart" "namespace" "" "nad" (include "llm-ray.componentName" (list $ $name)) -}}
{{- if $spec.existing -}}
{{- $parts := splitList "/" $spec.existing -}}
{{- $_ := set $network "owner" "other" -}}
{{- $_ := set $network "nad" (last $parts) -}}
{{- $_ := set $network "namespace" (gt (len $parts) 1 | ternary (first $parts) "") -}}
{{- else if $spec.sriovNetwork.create -}}
{{- $long := printf "%s-%s-%s" $.Release.Namespace (include "llm-ray.fullname" $) $name -}}
{{- $_ := set $network "owner" "operator" -}}
{{- $_ := set $network "nad" (include "llm-ray.shorten" (list $long 63)) -}}
{{- end -}}
{{- $networks = append $networks $network -}}
{{- end -}}
{{- dict "networks" $networks | toJson -}}
{{- end -}}

{{/* The networks that the pods of a group have, as JSON like llm-ray.networks. Usage: (list $ GROUP) */}}
{{- define "llm-ray.groupNetworks" -}}
{{- (index . 1).spec.fabric | ternary (include "llm-ray.networks" (index . 0)) (dict "networks" list | toJson) -}}
{{- end -}}

{{/* Multus adds one interface per entry, however many devices the pod holds. Usage: (list $ GROUP) → YAML map */}}
{{- define "llm-ray.fabricPodAnnotations" -}}
{{- $entries := list -}}
{{- range $network := (include "llm-ray.groupNetworks" . | fromJson).networks -}}
{{- range $i := until (int $network.spec.count) -}}
{{- $entry := dict "name" $network.nad -}}
{{- with $network.namespace -}}
{{- $_ := set $entry "namespace" . -}}
{{- end -}}
{{- if gt (len $network.spec.interfaces) $i -}}
{{- $_ := set $entry "interface" (index $network.spec.interfaces $i) -}}
{{- end -}}
{{- $entries = append $entries $entry -}}
{{- end -}}
{{- end -}}
{{- toYaml (empty $entries | ternary dict (dict "k8s.v1.cni.cncf.io/networks" (toJson $entries))) -}}
{{- end -}}

{{/* Devices of one pod, for requests and limits. Usage: (list $ GROUP) → YAML map */}}
{{- define "llm-ray.fabricResources" -}}
{{- $devices := dict -}}
{{- range (include "llm-ray.groupNetworks" . | fromJson).networks -}}
{{- with .spec -}}
{{- if .resourceName -}}
{{- $_ := set $devices .resourceName (add (index $devices .resourceName | default 0) (int .count)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $devices -}}
{{- end -}}

{{/*
Interface of gloo, whose tensors are all that ranks on CPUs exchange: the first one of a second network that has addresses, else
the pod network's. Multus numbers by position, named entries too. Usage: (list $ GROUP) → name, or nothing
*/}}
{{- define "llm-ray.glooInterface" -}}
{{- $found := "" -}}
{{- $position := 1 -}}
{{- range (include "llm-ray.groupNetworks" . | fromJson).networks -}}
{{- if and (not $found) (or .spec.existing (ne .spec.ipam.type "none")) -}}
{{- $found = first .spec.interfaces | default (printf "net%d" $position) -}}
{{- end -}}
{{- $position = add $position (int .spec.count) -}}
{{- end -}}
{{- $found | default (index . 0).Values.fabric.controlInterface -}}
{{- end -}}

{{/*
NCCL's and gloo's variables. Without the interface's name either may pick one that the other pods cannot reach; NCCL_NET
makes NCCL fail where it would go on over TCP in silence. Usage: (list $ GROUP) → env map
*/}}
{{- define "llm-ray.fabricEnv" -}}
{{- $fabric := (index . 0).Values.fabric -}}
{{- $networks := (include "llm-ray.groupNetworks" . | fromJson).networks -}}
{{- $env := dict -}}
{{- if or $networks (gt (index . 1).hosts 1.0) -}}
{{- $env = include "llm-ray.filled" (dict "GLOO_SOCKET_IFNAME" (include "llm-ray.glooInterface" .) "NCCL_SOCKET_IFNAME" $fabric.controlInterface) | fromYaml -}}
{{- if and $networks $fabric.requireRdma -}}
{{- $_ := set $env "NCCL_NET" "IB" -}}
{{- end -}}
{{- $env = include "llm-ray.overlay" (list $env $fabric.env) | fromYaml -}}
{{- end -}}
{{- toYaml $env -}}
{{- end -}}

{{/* RDMA locks its buffers in memory. Usage: (list $ GROUP) → YAML list */}}
{{- define "llm-ray.fabricCapabilities" -}}
{{- $networks := (include "llm-ray.groupNetworks" . | fromJson).networks -}}
{{- toYaml (empty $networks | ternary false (index . 0).Values.fabric.rdma | ternary (list "IPC_LOCK") list) -}}
{{- end -}}

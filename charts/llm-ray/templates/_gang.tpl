{{/*
All pods of a cluster, or none, by exactly one of: the operator's batch scheduler (kuberay), a PodGroup of ours (podgroup),
Kueue (kueue). Nothing is rendered for a provider that was not chosen: with two of them, nothing ever starts.
*/}}

{{/* Labels of the RayCluster or RayService; KubeRay copies a RayService's to its clusters. Usage: $ → YAML map */}}
{{- define "llm-ray.gangLabels" -}}
{{- $gang := .Values.gang -}}
{{- $labels := dict -}}
{{- if eq $gang.provider "kueue" -}}
{{- $labels = dict "kueue.x-k8s.io/queue-name" $gang.queue "kueue.x-k8s.io/priority-class" $gang.priorityClassName -}}
{{- else if and (eq $gang.provider "kuberay") (eq $gang.scheduler "volcano") -}}
{{- $labels = dict "volcano.sh/queue-name" $gang.queue "ray.io/priority-class-name" $gang.priorityClassName
  "volcano.sh/network-topology-mode" $gang.networkTopology.mode -}}
{{- with $gang.networkTopology.highestTierAllowed -}}
{{- $_ := set $labels "volcano.sh/network-topology-highest-tier-allowed" (int . | toString) -}}
{{- end -}}
{{- else if and (eq $gang.provider "kuberay") (eq $gang.scheduler "yunikorn") -}}
{{- /* YuniKorn's application ids are unique in the whole cluster, not in a namespace. */ -}}
{{- $app := include "llm-ray.shorten" (list (printf "%s-%s" .Release.Namespace (include "llm-ray.fullname" .)) 63) -}}
{{- $labels = dict "yunikorn.apache.org/app-id" $app "yunikorn.apache.org/queue" $gang.queue "ray.io/gang-scheduling-enabled" "true" -}}
{{- else if eq $gang.provider "kuberay" -}}
{{- $labels = dict "kai.scheduler/queue" $gang.queue -}}
{{- end -}}
{{- include "llm-ray.filled" $labels -}}
{{- end -}}

{{/* Annotations of the RayCluster or RayService. Usage: $ → YAML map */}}
{{- define "llm-ray.gangAnnotations" -}}
{{- $elastic := and (eq .Values.gang.provider "kueue") .Values.gang.kueue.elastic -}}
{{- toYaml ($elastic | ternary (dict "kueue.x-k8s.io/elastic-job" "true") dict) -}}
{{- end -}}

{{/*
Annotations of a pod template. Volcano takes pods without task-spec, or with the same, for one task of equal pods, and then
refuses groups that differ. Usage: (list $ GROUPNAME), the head's is headgroup → YAML map
*/}}
{{- define "llm-ray.gangPodAnnotations" -}}
{{- $root := index . 0 -}}
{{- $group := index . 1 -}}
{{- $gang := $root.Values.gang -}}
{{- $annotations := dict -}}
{{- if eq $gang.provider "podgroup" -}}
{{- $annotations = dict "scheduling.k8s.io/group-name" (include "llm-ray.podGroupName" $root) "volcano.sh/task-spec" $group -}}
{{- else if and (eq $gang.provider "kueue") (ne $group "headgroup") -}}
{{- $annotations = dict "kueue.x-k8s.io/podset-required-topology" $gang.kueue.requiredTopology
  "kueue.x-k8s.io/podset-preferred-topology" $gang.kueue.preferredTopology -}}
{{- end -}}
{{- include "llm-ray.filled" $annotations -}}
{{- end -}}

{{/* schedulerName of the pod templates; with kuberay the operator sets it. Usage: $ → name or nothing */}}
{{- define "llm-ray.gangSchedulerName" -}}
{{- eq .Values.gang.provider "podgroup" | ternary "volcano" "" -}}
{{- end -}}

{{/* Name of our PodGroup: never ray-<cluster>-pg, which the operator would take for its own. Usage: $ */}}
{{- define "llm-ray.podGroupName" -}}
{{- include "llm-ray.componentName" (list . "gang") -}}
{{- end -}}

{{/* The entries of a map that say something. Usage: MAP of strings → YAML map */}}
{{- define "llm-ray.filled" -}}
{{- $out := dict -}}
{{- range $key, $value := . -}}
{{- if $value -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/*
What the finished cluster needs before any of it may start: the head and, of every group, the hosts of its first replicas
(the least of them where something scales it), with everything in their pods. Usage: $ → JSON {"pods": N, "resources": {…}}
*/}}
{{- define "llm-ray.gangSize" -}}
{{- $cluster := include "llm-ray.clusterSpec" . | fromYaml -}}
{{- $total := dict -}}
{{- include "llm-ray.addPod" (list $total $cluster.headGroupSpec.template.spec 1) -}}
{{- if $cluster.enableInTreeAutoscaling -}}
{{- include "llm-ray.addRequests" (list $total $cluster.autoscalerOptions 1) -}}
{{- end -}}
{{- $pods := 1 -}}
{{- range $cluster.workerGroupSpecs -}}
{{- $hosts := include "llm-ray.gangHosts" (list $ .) | int -}}
{{- if $hosts -}}
{{- $pods = add $pods $hosts -}}
{{- include "llm-ray.addPod" (list $total .template.spec $hosts) -}}
{{- end -}}
{{- end -}}
{{- $resources := dict -}}
{{- range $name, $milli := $total -}}
{{- $_ := set $resources $name (include "llm-ray.quantity" (list $name $milli)) -}}
{{- end -}}
{{- dict "pods" $pods "resources" $resources | toJson -}}
{{- end -}}

{{/* Pods of one of workerGroupSpecs in the gang. Usage: (list $ SPEC) */}}
{{- define "llm-ray.gangHosts" -}}
{{- $spec := index . 1 -}}
{{- if $spec.suspend -}}
0
{{- else -}}
{{- mul (eq (index . 0).Values.autoscaling.mode "fixed" | ternary $spec.replicas $spec.minReplicas | int) ($spec.numOfHosts | default 1 | int) -}}
{{- end -}}
{{- end -}}

{{/* networkTopology of a PodGroup or a subgroup. Usage: $ → YAML map */}}
{{- define "llm-ray.networkTopology" -}}
{{- with .Values.gang.networkTopology -}}
{{- $topology := dict -}}
{{- if .mode -}}
{{- $_ := set $topology "mode" .mode -}}
{{- with .highestTierAllowed -}}
{{- $_ := set $topology "highestTierAllowed" (int .) -}}
{{- end -}}
{{- end -}}
{{- toYaml $topology -}}
{{- end -}}
{{- end -}}
